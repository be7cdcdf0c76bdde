// Package bufinv provides the buffers that tasks work on: pieces of the memory of a Map
// (package mmap), alone or chained to lists.
//
// A Buf has a memory, from Addr on for Len bytes, and in it a payload, its data, from DataAddr
// on for DataLen bytes. A task reads the data of a list, and writes to the room behind the
// data, element by element.
//
//	memory  |........dddddddddd______________|
//	        Addr     DataAddr  TailAddr      Addr+Len
//	                 <-DataLen-><---Room---->
//
// Source makes a Buf full of data, Target one that is all room.
//
// # Destinations
//
// One rule holds for the destinations of receives, reads and copies, and for the results of
// atomics: Submit empties them (Empty), and the bytes that arrive are their data when the task
// has completed. So a task can be submitted again unchanged. After SetAppend(true) of a task,
// arriving bytes go behind the data that is there. A Submit that fails leaves the destinations
// unchanged.
//
// The destination of a write or an atomic is memory of the peer, whose content this program
// does not know. The data goes to the room of its Buf, and the Buf does not change: submitted
// again, the task writes to the same place.
//
// # Errors
//
// Source, Target and the other calls that return only a Buf never return nil, so they can be
// written inline. The Buf holds the error: Err returns it, and so does every call that takes
// the Buf, including the allocation of a task. A Buf with an error takes nothing from the
// inventory; freeing it does nothing.
//
// A nil *Buf stands for "no buffer": an empty list.
//
// # References
//
// A new Buf has one reference, its maker's. Free drops one, Ref adds one. When the last one is
// dropped, the Buf returns to its inventory, and drops one reference of the next element of
// its list. A task takes over the caller's reference for every Buf it is given. It drops the
// reference when the task is freed, or when its allocation fails; Ref keeps a Buf beyond that.
//
// A Buf whose last reference was dropped must not be used any more. Until the inventory hands
// it out again, use is an error that matches ErrFreed. An inventory hands out the Buf that has
// been free the longest.
//
// # Memory
//
// [Source] and [Target] make Bufs straight from a Map, which has its own inventory. An
// Inventory that is declared as a variable grows as needed. New makes one with a bound, for
// programs that want ErrExhausted rather than growth. A Pool divides one memory into elements
// of one size, and never grows.
//
// # Concurrency
//
// An Inventory or a Pool is safe for concurrent use, and so are Ref and Free. All other calls
// on a list belong to one goroutine at a time: while a task has the list, to the goroutine that
// drives the engine. No call on the way from Source to Free allocates, except for errors and the
// growth of an Inventory.
package bufinv
