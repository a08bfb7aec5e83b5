#!/bin/bash
set -uxo pipefail
cd /testbed
git config --global --add safe.directory /testbed
git status
git show
git -c core.fileMode=false diff 9f1f1c2b7a3d4c5e6f708192a3b4c5d6e7f80910
git checkout 9f1f1c2b7a3d4c5e6f708192a3b4c5d6e7f80910 tests/test_area.py
git apply -v - <<'EOF_114329324912'
diff --git a/tests/test_area.py b/tests/test_area.py
--- a/tests/test_area.py
+++ b/tests/test_area.py
@@ -1,5 +1,10 @@
-from shapes.area import square
+from shapes.area import rectangle, square
 
 
 def test_square():
     assert square(3) == 9
+
+
+def test_rectangle():
+    assert rectangle(3, 4) == 12

EOF_114329324912
: '>>>>> Start Test Output'
python3 -m pytest --no-header -rA --tb=short -p no:cacheprovider tests/test_area.py
: '>>>>> End Test Output'
git checkout 9f1f1c2b7a3d4c5e6f708192a3b4c5d6e7f80910 tests/test_area.py
