// Package bufinv has the buffers that tasks work on: pieces of the memory of a
// Map (package mmap), alone or chained to lists.
//
// A Buf has a memory, from Addr on for Len bytes, and in it a payload, its data,
// from DataAddr on for DataLen bytes. What a task reads is the data of a list.
// What it writes goes to the room behind the data, element by element.
//
//	memory  |........dddddddddd______________|
//	        Addr     DataAddr  TailAddr      Addr+Len
//	                 <-DataLen-><---Room---->
//
// Source makes a Buf full of data, Target one that is all room.
//
// # Destinations
//
// One rule holds for the destinations of receives, reads and copies, and for the results
// of atomics: Submit empties them (Empty), and what arrives is their data when the task has
// completed. So a task can be submitted again as it is. SetAppend(true) of a task has what
// arrives go behind the data that is there. A Submit that fails leaves them as they are.
//
// The destination of a write or an atomic is memory of the peer, of which this program does
// not know what is in it. The data goes to the room of its Buf, and the Buf stays as it is:
// submitted again, the task writes to the same place.
//
// # Errors
//
// Source, Target and the other calls that return only a Buf never return nil.
// What went wrong sits in the Buf: Err returns it, and so does every call that is
// given the Buf, allocation of a task included. So they can be written inline. A
// Buf with an error takes nothing from the inventory; freeing it does nothing.
//
// A nil *Buf stands for "no buffer": an empty list.
//
// # References
//
// A new Buf has one reference, its maker's. Free drops one, Ref adds one. With
// the last one gone the Buf returns to its inventory, and drops one reference of
// the next element of its list. A task takes over the reference of the caller for
// every Buf it is given, and drops it when it is freed itself, or when it could
// not be allocated; Ref keeps a Buf beyond that.
//
// A Buf whose last reference was dropped must not be used any more. As long as
// the inventory has not handed it out again, use is an error that matches
// ErrFreed; inventories hand out the Buf that has been free the longest.
//
// # Memory
//
// [Source] and [Target] make Bufs straight from a Map, which has an inventory of its own.
// An Inventory that is declared as a variable grows as needed; New makes one with a
// bound, for programs that want ErrExhausted rather than growth. A Pool divides one
// memory into elements of one size, and never grows.
//
// # Concurrency
//
// An Inventory or a Pool is safe for concurrent use, and so are Ref and Free. All
// else that concerns a list belongs to one goroutine at a time: the one that runs
// the engine, while a task has the list. No call on the way from Source to Free
// allocates, errors and the growth of an Inventory excepted.
package bufinv
