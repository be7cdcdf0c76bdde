# Prints what failed in the output of go test: each failed test with its own lines, and each failed
# package. With -v the lines of a test come before its result, otherwise after it.
{ line = $0; sub(/^ +/, "", line); split(line, word, " ") }
line ~ /^=== (RUN|CONT|NAME) / { test = word[3]; after = 0; next }
line ~ /^(--- (PASS|SKIP)|ok  )/ { delete said[word[3]]; test = ""; after = 0; next }
line ~ /^--- FAIL/ { printf "%s", said[word[3]]; delete said[word[3]]; print; test = ""; after = 40; next }
line ~ /^(panic: |WARNING: DATA RACE|fatal error: )/ { printf "%s", said[test]; delete said[test]; print; after = 60; next }
/^(FAIL\t| *FAILED )/ { print; after = 0; next }
after > 0 { print; after--; next }
test != "" && length(said[test]) < 4000 { said[test] = said[test] $0 "\n" }
