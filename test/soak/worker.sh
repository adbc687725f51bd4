# The same in a shell, without heartbeats: cheap to start.
while IFS= read -r line; do
  if [ "$line" = daemon ]; then (env -i setsid sleep "$1" >/dev/null 2>&1 &); fi
  echo "answer to $line"
done
