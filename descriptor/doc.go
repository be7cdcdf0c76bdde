// Package descriptor defines the descriptors that programs exchange and users copy between
// hosts: of connections, datagram endpoints, memory maps and sync events.
//
// A descriptor is a small binary container (magic, version, kind, length, payload, CRC-32C)
// with an armored form for copying and pasting: base64 between BEGIN and END lines. Every
// reader takes both forms. docs/descriptors.md specifies the formats byte by byte.
//
// A Bundle holds all that one program gives to another in a single descriptor.
//
// Each package that writes a payload defines it (rdma, mmap, syncevent).
//
// A descriptor contains keys that give access to memory to everyone who has it: treat it as a
// secret. The checksum detects accidental damage, not forgery.
//
// Functions are safe for concurrent use. A Scanner belongs to one goroutine at a time.
package descriptor
