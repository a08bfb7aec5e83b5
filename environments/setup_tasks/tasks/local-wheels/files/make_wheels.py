import pathlib, sys, zipfile

for source in sorted(pathlib.Path("wheels").iterdir()):
    name, version = source.name.rsplit("-", 1)
    about = f"{name}-{version}.dist-info"
    needs = "Requires-Dist: hexcolor>=1\n" if name == "palette" and version == "2.1" else ""
    with zipfile.ZipFile(f"wheels/{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path in sorted(source.rglob("*.py")):
            wheel.write(path, path.relative_to(source).as_posix())
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "".join(f"{path},,\n" for path in wheel.namelist()) + f"{about}/RECORD,,\n")
