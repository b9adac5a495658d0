// KafkaJS for the tests: `node peer.js read|write`, told what to do by JSON on standard input, bytes as base64.

const { text } = require('node:stream/consumers')
const { randomUUID } = require('node:crypto')
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs')
const lz4 = require('lz4-napi')
const snappy = require('kafkajs-snappy')
const { ZstdCodec } = require('zstd-codec')

const TYPES = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const packed = bytes => (bytes == null ? null : Buffer.from(bytes).toString('base64'))
const unpacked = base64 => (base64 == null ? null : Buffer.from(base64, 'base64'))

// KafkaJS brings gzip only. Its own packages for lz4 and zstd have to be compiled, and that of zstd fails with Node 20.
function addCodecs(zstd) {
  const streaming = new zstd.Streaming()
  CompressionCodecs[CompressionTypes.Snappy] = snappy
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async encoder => lz4.compressFrame(encoder.buffer),
    decompress: async buffer => lz4.decompressFrame(buffer),
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async encoder => Buffer.from(streaming.compress(encoder.buffer)),
    decompress: async buffer => Buffer.from(streaming.decompress(buffer)),
  })
}

async function read(kafka, { topic, count }) {
  const consumer = kafka.consumer({ groupId: randomUUID() })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const found = []
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const eachMessage = async ({ partition, message }) => {
      const headers = Object.entries(message.headers).flatMap(([name, values]) =>
        [values].flat().map(value => [name, packed(value)])
      )
      const { key, value, timestamp } = message
      found.push({ partition, key: packed(key), value: packed(value), headers, timestamp: Number(timestamp) })
      if (found.length === count) resolve()
    }
    consumer.run({ eachMessage }).catch(reject)
  })
  await consumer.disconnect()
  return found
}

function asMessage({ partition, key, value, headers, timestamp }) {
  const byName = {}
  for (const [name, bytes] of headers) (byName[name] ??= []).push(unpacked(bytes))
  return { partition, key: unpacked(key), value: unpacked(value), headers: byName, timestamp: String(timestamp) }
}

async function write(kafka, { topic, parts }) {
  const plain = kafka.producer()
  const transactional = kafka.producer({ transactionalId: randomUUID(), maxInFlightRequests: 1, idempotent: true })
  await Promise.all([plain.connect(), transactional.connect()])
  for (const { codec, end, records } of parts) {
    const batch = { topic, compression: TYPES[codec], messages: records.map(asMessage) }
    if (end === null) {
      await plain.send(batch)
    } else {
      const transaction = await transactional.transaction()
      await transaction.send(batch)
      await transaction[end]()
    }
  }
  await Promise.all([plain.disconnect(), transactional.disconnect()])
  return parts.length
}

async function main() {
  const asked = JSON.parse(await text(process.stdin))
  if (!asked.asInstalled) addCodecs(await new Promise(resolve => ZstdCodec.run(resolve)))
  const kafka = new Kafka({ brokers: [asked.servers], logLevel: logLevel.ERROR })
  const work = { read, write }[process.argv[2]]
  process.stdout.write(JSON.stringify(await work(kafka, asked)))
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
