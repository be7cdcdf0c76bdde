// Package mmap registers memory with devices, so that tasks can use it and peers can reach it.
//
// A Map is a range of memory: allocated by the library (Alloc), the caller's (Register), a
// dma-buf's (New), or a peer's (Import). Memory of this host is registered, from the moment
// the Map is made until Close, in a protection domain of each device that uses it. Export
// makes the descriptor that a peer imports. The descriptor holds the key to the memory, and is
// as secret as the memory.
//
// # Lifetime
//
// Buffers (package bufinv) hold the Map that they lie in. Close fails while they do, so free
// them first. After Close the slice that Bytes returned must not be touched any more. Memory
// that the library allocated is unmapped, and touching it ends the program with a fault that
// cannot be recovered.
//
// Closing a device first closes the Maps that were made on it. A Map that a program drops
// without Close stays registered, with its memory, until then.
//
// # Permissions
//
// Permissions are for devices; the program itself may always read and write its memory. Local
// reads are always allowed. A device refuses every other access that the Map's permissions do
// not include. See Permission.
//
// The permission BindWindows lets the program lend parts of the Map to one peer at a time, for
// as long as it likes (rdma.Window). A peer imports the descriptor of such a window as that of
// any Map.
//
// # Concurrency
//
// All methods are safe for concurrent use. LKey, RKey, Hold, Release and the getters take no
// lock and do not allocate. The bytes themselves are not guarded: a device, or a peer with the
// permission, reads and writes them at any time.
package mmap
