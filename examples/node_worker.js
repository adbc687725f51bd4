// Answers heartbeats over its lifeline and each line of JSON on its standard input with another.
const net = require("net");
const readline = require("readline");

const lifeline = new net.Socket({ fd: Number(process.env.SNAKEPIT_LIFELINE_FD) });
readline.createInterface({ input: lifeline }).on("line", (line) => {
  if (line.startsWith("PING:")) lifeline.write(`PONG:${line.slice(5)}:${Date.now()}\n`);
});
// The BEAM is gone.
lifeline.on("close", () => process.exit(0));

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const { words } = JSON.parse(line);
  console.log(JSON.stringify({ sorted: words.sort() }));
});
