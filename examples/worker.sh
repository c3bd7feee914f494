#!/usr/bin/env bash
# A Foreman worker in bash with curl: one job at a time.
#
#   bash examples/worker.sh
#   foreman submit --kind checksum --payload '{"text": "hello"}' --wait
#
# JSON is read with grep: good enough for ids, and for a text without quotes. For more, use jq or another language.
set -u

server=${FOREMAN_URL:-http://127.0.0.1:8080}
worker="$(hostname)-$$-bash"
lease=${LEASE_SECONDS:-30}
headers=(-H 'content-type: application/json')
[ -n "${FOREMAN_API_KEY:-}" ] && headers+=(-H "authorization: Bearer $FOREMAN_API_KEY")

folder=$(mktemp -d)
# A process that was forked a moment ago still has its parent's traps: each looks whether it is meant.
trap '[ "$BASHPID" != $$ ] || rm -rf "$folder"' EXIT
answer=$folder/answer
job_id='' token=''

# post PATH BODY: the answer is in $answer, its status in $status (000: none); true for 2xx.
post() {
    # In the background and waited for: only so does bash run a trap while curl waits.
    curl -sS -o "$answer" -w '%{http_code}' "${headers[@]}" -d "$2" "$server$1" >"$folder/status" 2>/dev/null &
    wait $!
    status=$(cat "$folder/status")
    [[ $status == 2* ]]
}

# settle VERB [FIELDS]: again while the server is away; sending the very same settlement twice is safe.
settle() {
    until post "/jobs/$job_id/$1" "{\"lease_token\":\"$token\"${2:+,$2}}"; do
        case $status in
            409 | 404) echo "$job_id: not ours any more" >&2; return 1 ;;
            4*) [ "$status" = 429 ] || { cat "$answer" >&2; return 1; } ;;
        esac
        sleep 1
    done
}

# heartbeats PID: renews the lease. Ends the work when the job was cancelled (exit 3) or the lease is lost (4).
heartbeats() {
    local heard
    while sleep 1; do
        heard=$(curl -sS -w ' %{http_code}' "${headers[@]}" -d "{\"lease_token\":\"$token\"}" \
            "$server/jobs/$job_id/heartbeat" 2>/dev/null)
        case $heard in
            *' 409') kill "$1"; exit 4 ;;
            *'"cancel_requested":true'*) kill "$1"; exit 3 ;;
        esac
    done
}

# The work itself. checksum TEXT [SECONDS]
checksum() {
    if [ -n "$2" ]; then
        trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM
        sleep "$2" &
        wait $!
    fi
    printf %s "$1" | sha256sum | cut -d' ' -f1
}

# string NAME: the first string of that name in the answer.
string() { grep -o "\"$1\":\"[^\"]*\"" "$answer" | head -n 1 | cut -d'"' -f4; }

leave() {
    [ "$BASHPID" = $$ ] || exit 143
    trap '' TERM INT
    # All that runs in the background, also what was begun a moment ago: a claim that goes on waiting behind our
    # back would be given a job that nobody does.
    kill $(jobs -p) 2>/dev/null
    # Back into the queue at once; no attempt is spent.
    [ -z "$job_id" ] || curl -sS -o "$answer" --retry 5 --retry-connrefused "${headers[@]}" \
        -d "{\"lease_token\":\"$token\"}" "$server/jobs/$job_id/release"
    exit 0
}
trap leave TERM INT

echo "$worker takes checksum from $server"
while true; do
    claim="\"worker\":\"$worker\",\"kinds\":[\"checksum\"],\"limit\":1,\"lease_seconds\":$lease,\"wait_seconds\":20"
    if ! post /claims "{$claim}"; then
        echo "cannot claim ($status)" >&2
        sleep 1
        continue
    fi
    # The last one: a payload may contain anything, also what looks like a token.
    token=$(grep -o '"lease_token":"[^"]*"' "$answer" | tail -n 1 | cut -d'"' -f4)
    job_id=$(string job_id)
    [ -n "$job_id" ] || continue
    text=$(string text)
    seconds=$(grep -o '"seconds":[0-9.]*' "$answer" | head -n 1 | cut -d: -f2)
    if settle start; then
        checksum "$text" "$seconds" >"$folder/result" &
        work=$!
        heartbeats "$work" &
        beat=$!
        wait "$work"
        outcome=$?
        case $outcome in
            0) settle complete "\"result\":{\"sha256\":\"$(cat "$folder/result")\"}" ;;
            # Ended by the heartbeats: a cancelled job is confirmed by giving it up, a lost one is not ours.
            143) wait "$beat"; [ $? -eq 3 ] && settle release ;;
            *) settle fail "\"error\":{\"code\":\"exit_$outcome\",\"message\":\"the work failed\"},\"retryable\":true" ;;
        esac
        kill "$beat" 2>/dev/null
    fi
    job_id=''
done
