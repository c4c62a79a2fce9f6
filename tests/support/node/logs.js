// A client of logs made of logs.proto alone: node logs.js PROTO ADDRESS LOG PASSWORD ROWS
// It follows the log, appends rows in batches, waits until it has seen each of them, and prints what it saw as JSON.

const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [proto, address, log, password, rows] = process.argv.slice(2);
const { Logs } = grpc.loadPackageDefinition(loader.loadSync(proto, { defaults: true, longs: Number })).bk_spark.v1;
const client = new Logs(address, grpc.credentials.createInsecure());
const where = { log, password: Buffer.from(password) };
const BATCH = 100;

function ask(method, request) {
  return new Promise((resolve, reject) =>
    client[method](request, (error, answer) => (error ? reject(error) : resolve(answer))));
}

function follow(count) {
  const seen = [];
  return new Promise((resolve, reject) => {
    const call = client.Follow({ ...where, startOffset: 0 });
    call.on("data", (block) => {
      block.rows.forEach((row, i) => seen.push([block.firstOffset + i, row.toString()]));
      if (seen.length >= count) {
        resolve(seen);
        call.cancel();
      }
    });
    call.on("error", (error) => seen.length >= count || reject(error));
  });
}

function append(count) {
  const answers = [];
  return new Promise((resolve, reject) => {
    const call = client.Append();
    call.on("data", (answer) => answers.push([answer.batchId, answer.firstOffset, answer.count]));
    call.on("error", reject);
    call.on("end", () => resolve(answers));
    for (let first = 0; first < count; first += BATCH) {
      const batch = [];
      for (let i = first; i < Math.min(first + BATCH, count); i++) batch.push(Buffer.from(`row ${i}`));
      call.write({ ...where, batchId: first / BATCH + 1, rows: batch });
    }
    call.end();
  });
}

async function main() {
  const { names } = await ask("List", {});
  const following = follow(Number(rows));
  const answers = await append(Number(rows));
  const seen = await following;
  const { firstOffset, endOffset } = await ask("Describe", where);
  const refused = await ask("Describe", { log: "none" }).catch((error) => grpc.status[error.code]);
  const wrong = await ask("Describe", { log, password: Buffer.from("no") }).catch((error) => grpc.status[error.code]);
  console.log(JSON.stringify({ names, answers, seen, firstOffset, endOffset, refused, wrong }));
  client.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
