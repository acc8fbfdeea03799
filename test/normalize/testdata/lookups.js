// lookups.js lookup|resolve4|resolve6 NAME...
//
// Looks up all the names at once and prints a line for each: the name, the
// milliseconds, and the addresses (EMPTY if there are none) or the error's code.
'use strict'
const dns = require('dns')

const [how, ...names] = process.argv.slice(2)
const ask = {
  lookup: (name, done) => dns.lookup(name, { all: true }, (err, list) => done(err, list && list.map((a) => a.address))),
  resolve4: dns.resolve4,
  resolve6: dns.resolve6,
}[how]

for (const name of names) {
  const began = process.hrtime.bigint()
  ask(name, (err, addrs) => {
    const ms = (process.hrtime.bigint() - began) / 1000000n
    console.log([name, ms, ...(err ? [err.code] : addrs.length ? addrs : ['EMPTY'])].join(' '))
  })
}
