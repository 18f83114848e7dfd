// Buffers, filled and hashed twice; the argument is how many MiB.
const crypto = require("crypto");
const count = Number(process.argv[2]) * 4;
const buffers = [];
for (let number = 0; number < count; number++) {
    const buffer = Buffer.alloc(256 * 1024);
    for (let at = 0; at < buffer.length; at += 64) buffer.writeUInt32LE((number * 40503 + at) >>> 0, at);
    buffers.push(buffer);
}
const hash = crypto.createHash("sha1");
for (const buffer of buffers) hash.update(buffer);
for (const buffer of buffers) buffer.swap32();
for (const buffer of buffers) hash.update(buffer);
console.log(hash.digest("hex"));
