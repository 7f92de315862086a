// What a broker owes kafkajs, checked with the client's public interface alone.
//
// Run as `node conformance.js BOOTSTRAP PREFIX`. Prints one line of JSON for each check:
// {"check": name, "ok": true} or {"check": name, "ok": false, "detail": why}. A check that writes records reads
// them again as the only member of a group, since kafkajs reads in no other way, and adds the topic and what must
// be in it, so that the caller can read it with another client. Groups are in groups.js, transactions in transactions.js.
'use strict'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = require('kafkajs')
const zstd = require('@bokuweb/zstd-wasm')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from(zstd.compress(encoder.buffer, 3)),
  decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
})

const { checkGroups, readBack } = require('./groups')
const { checkTransactions } = require('./transactions')

const [bootstrap, prefix] = process.argv.slice(2)
const brokers = bootstrap.split(',')
const DEADLINE_MS = 30_000
const kafka = new Kafka({
  clientId: 'conformance',
  brokers,
  logLevel: logLevel.NOTHING,
  requestTimeout: 20_000,
  retry: { retries: 3 },
})
const admin = kafka.admin()
let topics = 0

async function main() {
  await zstd.init()
  await admin.connect()
  await check('create and describe a topic', createAndDescribe)
  await check('refuse bad topics', refuseBadTopics)
  await check('add partitions', addPartitions)
  await check('describe and alter configs', configs)
  await check('describe the cluster', cluster)
  await check('describe acls', acls)
  await check('delete a topic', deleteTopic)
  for (const codec of ['None', 'GZIP', 'Snappy', 'ZSTD']) {
    for (const [level, acks] of [['0', 0], ['1', 1], ['all', -1]]) {
      await check(`produce ${codec.toLowerCase()} acks ${level}`, () => produce(CompressionTypes[codec], acks))
    }
  }
  await check('produce idempotently', idempotent)
  await check('every size of record', sizes)
  await check('a record too large', tooLarge)
  await check('headers, nulls and timestamps', shapes)
  await check('list offsets', listOffsets)
  await check('delete records', deleteRecords)
  const lent = { admin, check, create, equal, fails, kafka, name, numbered, send, until }
  await checkGroups(lent)
  await checkTransactions(lent)
  await admin.disconnect()
}

async function check(name, run) {
  let result
  try {
    result = { check: name, ok: true, ...(await run()) }
  } catch (failure) {
    result = { check: name, ok: false, detail: String(failure.stack || failure) }
  }
  console.log(JSON.stringify(result))
}

// -- checks ---------------------------------------------------------------------------------------------------

async function createAndDescribe() {
  const topic = await create(3, [{ name: 'retention.ms', value: '123456' }])
  const { partitions } = await describe(topic)
  equal(partitions.length, 3)
  equal(partitions[0].replicas.length, brokers.length)
  equal(partitions[0].isr.length, brokers.length)
  equal((await admin.listTopics()).includes(topic), true)
  const assigned = name()
  const replicaAssignment = [{ partition: 0, replicas: [1] }, { partition: 1, replicas: [1] }]
  await admin.createTopics({ topics: [{ topic: assigned, replicaAssignment }], waitForLeaders: false })
  await until(async () => (await describe(assigned)).partitions.length === 2)
  const unmade = name()
  await admin.createTopics({ topics: [{ topic: unmade }], validateOnly: true, waitForLeaders: false })
  equal((await admin.listTopics()).includes(unmade), false)
}

async function refuseBadTopics() {
  const topic = await create(1)
  // kafkajs answers false for a topic that exists, and throws for all else.
  equal(await admin.createTopics({ topics: [{ topic }], waitForLeaders: false }), false)
  await refused('INVALID_TOPIC_EXCEPTION', { topic: 'no/good' })
  await refused('INVALID_PARTITIONS', { topic: name(), numPartitions: 0 })
  await refused('INVALID_REPLICATION_FACTOR', { topic: name(), replicationFactor: 5 })
  await refused('INVALID_CONFIG', { topic: name(), configEntries: [{ name: 'retention.ms', value: 'soon' }] })
}

async function addPartitions() {
  const topic = await create(1)
  await admin.createPartitions({ topicPartitions: [{ topic, count: 4 }] })
  await until(async () => (await describe(topic)).partitions.length === 4)
  await fails('INVALID_PARTITIONS', admin.createPartitions({ topicPartitions: [{ topic, count: 2 }] }))
}

async function configs() {
  const topic = await create(1, [{ name: 'retention.ms', value: '123456' }])
  equal(await config(topic, 'retention.ms'), '123456')
  const change = value => admin.alterConfigs({
    validateOnly: false,
    resources: [{
      type: ConfigResourceTypes.TOPIC, name: topic, configEntries: [{ name: 'max.message.bytes', value }],
    }],
  })
  await change('2000')
  await until(async () => (await config(topic, 'max.message.bytes')) === '2000')
  equal(await config(topic, 'retention.ms'), '604800000')
  await fails('INVALID_CONFIG', change('few'))
}

async function cluster() {
  const described = await admin.describeCluster()
  equal(described.brokers.length, brokers.length)
  equal(described.brokers.some((broker) => broker.nodeId === described.controller), true)
  equal(typeof described.clusterId, 'string')
}

async function acls() {
  const anything = { resourceType: 1, resourcePatternType: 1, operation: 1, permissionType: 1 }
  await fails('SECURITY_DISABLED', admin.describeAcls(anything))
}

async function deleteTopic() {
  const topic = await create(1)
  await admin.deleteTopics({ topics: [topic] })
  await until(async () => !(await admin.listTopics()).includes(topic))
  await fails('UNKNOWN_TOPIC_OR_PARTITION', admin.deleteTopics({ topics: [topic] }))
}

async function produce(compression, acks) {
  const topic = await create(1)
  const messages = numbered(50)
  const [sent] = await send({}, { topic, acks, compression, messages }) || [{}]
  if (acks !== 0) equal(sent.baseOffset, '0')
  await until(async () => (await end(topic)) === '50')
  return wrote(topic, messages)
}

async function idempotent() {
  const topic = await create(1)
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 })
  await producer.connect()
  const messages = numbered(500)
  for (let i = 0; i < messages.length; i += 20) {
    await producer.send({ topic, acks: -1, messages: messages.slice(i, i + 20) })
  }
  await producer.disconnect()
  equal(await end(topic), '500')
  return wrote(topic, messages)
}

async function sizes() {
  const topic = await create(1)
  const messages = [0, 1, 2, 100, 1_000, 10_000, 100_000, 1_000_000].map(n => ({ value: 'x'.repeat(n) }))
  for (const message of messages) await send({}, { topic, messages: [message] })
  const read = await readBack(kafka, topic, messages.length)
  equal(read.map(m => m.value.length), messages.map(m => m.value.length))
  return { topic, sizes: messages.map(m => m.value.length) }
}

async function tooLarge() {
  const topic = await create(1)
  await fails('MESSAGE_TOO_LARGE', send({}, { topic, messages: [{ value: Buffer.alloc(2_000_000) }] }))
  equal(await end(topic), '0')
}

async function shapes() {
  const topic = await create(1)
  const timestamp = String(Date.now() - 3_600_000)
  const messages = [
    { key: 'k', value: 'v', timestamp, headers: { one: ['1', '2'], größe: '✓' } },
    { key: null, value: 'no key', timestamp },
    { key: 'no value', value: null, timestamp },
    { key: null, value: null, timestamp },
  ]
  await send({}, { topic, messages })
  const [rich] = await readBack(kafka, topic, messages.length)
  equal([rich.timestamp, rich.headers.one.map(String), String(rich.headers.größe)], [timestamp, ['1', '2'], '✓'])
  return { ...(await wrote(topic, messages)), timestamp: Number(timestamp), headers: [['one', '1'], ['one', '2'], ['größe', '✓']] }
}

async function listOffsets() {
  const topic = await create(1)
  const moment = Date.now() - 3_600_000
  for (const late of [10, 50, 20]) {
    await send({}, { topic, messages: [{ value: 'v', timestamp: String(moment + late) }] })
  }
  equal(await admin.fetchTopicOffsets(topic), [{ partition: 0, offset: '3', high: '3', low: '0' }])
  equal(await admin.fetchTopicOffsetsByTimestamp(topic, moment + 15), [{ partition: 0, offset: '1' }])
}

async function deleteRecords() {
  const topic = await create(1)
  await send({}, { topic, messages: numbered(10) })
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
  equal((await admin.fetchTopicOffsets(topic))[0].low, '4')
}

// -- the client -----------------------------------------------------------------------------------------------

function name() {
  return `${prefix}-${topics++}`
}

async function create(numPartitions, configEntries = []) {
  const topic = name()
  await admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: -1, configEntries }] })
  await until(async () => (await describe(topic)).partitions.length === numPartitions)
  return topic
}

async function describe(topic) {
  return (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0]
}

async function config(topic, key) {
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic, configNames: [key] }
  const described = await admin.describeConfigs({ resources: [resource], includeSynonyms: false })
  return described.resources[0].configEntries[0].configValue
}

async function send(settings, request) {
  const producer = kafka.producer(settings)
  await producer.connect()
  try {
    return await producer.send(request)
  } finally {
    await producer.disconnect()
  }
}

async function end(topic) {
  return (await admin.fetchTopicOffsets(topic))[0].high
}

function numbered(count) {
  return Array.from({ length: count }, (_, i) => ({ key: `key-${i}`, value: 'value-'.repeat(20) + i }))
}

async function wrote(topic, messages) {
  const records = messages.map(({ key, value }) => [key === undefined ? null : key, value])
  const read = await readBack(kafka, topic, messages.length)
  const text = buffer => buffer && String(buffer)
  equal(read.map(({ key, value }) => [text(key), text(value)]), records)
  return { topic, records }
}

async function refused(type, topic) {
  await fails(type, admin.createTopics({ topics: [topic], waitForLeaders: false }))
}

async function fails(type, promise) {
  let failure = null
  try {
    await promise
  } catch (thrown) {
    failure = thrown
  }
  const found = failure && [failure, failure.cause, ...(failure.errors || [])].map(e => e && e.type)
  if (!found || !found.includes(type)) throw new Error(`expected ${type}, found ${failure && failure.stack}`)
}

// A cluster tells its brokers of a change a moment after it tells the client.
async function until(holds) {
  const deadline = Date.now() + DEADLINE_MS
  for (;;) {
    try {
      if (await holds()) return
    } catch (notYet) {
      if (notYet.type !== 'UNKNOWN_TOPIC_OR_PARTITION') throw notYet
    }
    if (Date.now() > deadline) throw new Error('waited in vain')
    await new Promise(resolve => setTimeout(resolve, 10))
  }
}

function equal(found, expected) {
  if (JSON.stringify(found) !== JSON.stringify(expected)) {
    throw new Error(`expected ${JSON.stringify(expected)}, found ${JSON.stringify(found)}`)
  }
}

main().catch(failure => {
  console.error(failure)
  process.exitCode = 1
})
