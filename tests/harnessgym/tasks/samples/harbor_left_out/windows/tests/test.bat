echo 0 > C:\logs\verifier\reward.txt
