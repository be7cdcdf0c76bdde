// Package mmap registers memory with devices, so that tasks can use it and peers
// can reach it.
//
// A Map is a range of memory: the library's own (Alloc), the caller's (Register), a
// dma-buf's (New), or a peer's (Import). Memory of this host is registered in a
// protection domain of each device that it is to be used with, from the moment the
// Map is made until Close. Export makes the descriptor that a peer imports; it holds
// the key to the memory and is as secret as the memory is.
//
// # Lifetime
//
// Buffers (package bufinv) hold the Map that they lie in, and Close refuses while
// they do: free them first. After Close the slice that Bytes returned must not be
// touched any more. Where the library allocated the memory, it is unmapped, and
// touching it ends the program with a fault that cannot be recovered.
//
// Closing the device that a Map was made on closes the Map first. One that a program
// drops without Close stays registered, with its memory, until then.
//
// # Permissions
//
// Permissions are for devices; the program itself may always read and write its memory.
// Local reads are always allowed. Everything else has to be asked for; a device
// refuses what has not been. See Permission.
//
// One of them, BindWindows, is not for peers: it has parts of the Map lent to one peer at
// a time, for as long as the program likes (rdma.Window). What such a window exports is
// imported as any Map.
//
// # Concurrency
//
// All methods are safe for concurrent use. LKey, RKey, Hold, Release and the
// getters take no lock and do not allocate. The bytes themselves are not guarded:
// a device, or a peer with the right to, reads and writes them at any time.
package mmap
