// Package descriptor has the container in which descriptors travel, binary and as text;
// packages rdma, mmap and syncevent define what is inside.
//
// Programs exchange descriptors, and users copy them between hosts: of connections, datagram
// endpoints, memory maps and sync events. The container is small (magic, version, kind,
// length, payload, CRC-32C), with an armored form for copying and pasting: base64 between
// BEGIN and END lines. Every reader takes both forms. docs/descriptors.md specifies the
// formats byte by byte.
//
// A Bundle holds all that one program gives to another in a single descriptor.
//
// Each package that writes a payload defines it: rdma/descriptor.go, mmap/export.go,
// syncevent/descriptor.go.
//
// A descriptor contains keys that give access to memory to everyone who has it: treat it as a
// secret. The checksum detects accidental damage, not forgery.
//
// Functions are safe for concurrent use. A Scanner belongs to one goroutine at a time.
package descriptor
