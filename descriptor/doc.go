// Package descriptor holds what users copy between hosts: descriptors of
// connections, memory maps and sync events.
//
// A descriptor is a small binary container (magic, version, kind, length,
// payload, CRC-32C) with an armored form for copying and pasting: base64
// between BEGIN and END lines. Every reader takes both forms. The formats are
// given byte by byte in docs/descriptors.md.
//
// A Bundle holds all that one program gives to another in a single descriptor.
//
// What any other payload says is the business of the package that writes it (rdma,
// mmap); Writer and Reader are what they build and parse it with.
//
// A descriptor carries keys that open memory to whoever holds it: treat it as a
// secret. The checksum guards against accidents, not against forgery.
//
// Functions are safe for concurrent use. A Scanner, Writer or Reader belongs to
// one goroutine at a time.
package descriptor
