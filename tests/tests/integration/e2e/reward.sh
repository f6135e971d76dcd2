# Command of a reward that tries to leave its container. A component is 1 if its attempt failed, and
# `works` is 1 if what a command may do succeeds. Leaves an orphan in a separate session, and ends
# after 24 completions.
PATH=/usr/bin
echo "reward.sh starts" >&2
attempt() { if eval "$1" >/dev/null 2>&1; then echo 0; else echo 1; fi; }
environment=$(attempt 'grep -q CREDENTIAL /proc/*/environ')
processes=$(attempt 'grep -q rljob-coor[d]inator /proc/[0-9]*/cmdline')
tokens=$(attempt 'ls /rljob/tokens || ls /rljob/s3 || ls /rljob/hub || ls /rljob/config')
account=$(attempt 'ls /var/run/secrets/kubernetes.io/serviceaccount')
run=$(attempt 'ls /rljob/runs || touch /data/written || touch /usr/local/bin/written')
# The containers of a pod share their network, in which the coordinator listens.
network=$(attempt ': >/dev/tcp/127.0.0.1/8080')
works=$((1 - $(attempt 'test -r /data/train.jsonl && touch /tmp/written && test -r /proc/1/environ')))
(setsid sleep 86397 >/dev/null 2>&1 &)
parts="\"environment\": $environment, \"processes\": $processes, \"tokens\": $tokens"
parts="$parts, \"account\": $account, \"run\": $run, \"network\": $network, \"works\": $works"
for _ in {1..24}; do
    read -r line || exit
    [[ $line =~ \"id\":\ *([0-9]+) ]]
    echo "{\"id\": ${BASH_REMATCH[1]}, \"reward\": 1, \"components\": {$parts}}"
done
