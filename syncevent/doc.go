// Package syncevent provides sync events: 64-bit values that one program waits for and another
// changes, on the same host or over RDMA.
//
// # Events
//
// [New] makes an [Event]. Its value is in memory of the library, in 8 bytes of the caller, or
// in a buffer. This program reads, sets and adds to the value, and waits from any goroutine,
// with [Event.Wait], until a [Condition] holds. [Event.Export] makes the descriptor with which
// peers reach the value over RDMA.
//
// [Import] makes a handle of a peer's event. The value is in the peer's memory: the handle's
// methods that work on the value fail with ErrRemote, and the sync event tasks of package rdma
// work on it.
//
// # Publishers
//
// Config.Publishers says which programs change the value: this one, its peers, or both. Peers
// get only the rights to the memory that they need. If both change the value at the same time,
// an addition could be lost on adapters whose atomics are not atomic to the processor (IBTA
// 9.4.5.1). There New fails with ErrPublisher unless Config.NeverConcurrent promises that this
// does not happen.
//
// # Waiting
//
// A wait spins for about 50 µs, for a short delay. Then it sleeps. A change of the value
// wakes the wait
//
//   - directly, if Set, Add or a task of this program makes it;
//   - directly, by the packet that changes the value, if a peer makes it on the software
//     device. The packet is handled up to about 1 ms late if this program has just stopped
//     calling Progress in a loop without calling pe.Engine.Arm. Run and Arm hand the device
//     over to its own goroutine at once;
//   - by a poll of the value, if a peer makes it on an adapter, which does not report writes
//     of peers;
//   - by a poll of the value, if anything else changes the 8 bytes of Config.Memory or
//     Config.Buf, such as the program's own stores to them.
//
// A poll comes after an eighth of the time slept so far, and after Config.PollInterval at
// most; a change is noticed that much later. An event has one timer for all its sleeping
// waits, which runs only while there are some.
//
// A wait checks the value first, so a change made before the wait began counts. A wait sees
// values, not changes: it may miss a value that another change replaces soon after. Where
// every change counts, use a value that only grows and [Greater].
//
// # Order
//
// A program that sees a value stored by Set or Add sees everything that the other program
// wrote before that. For changes by peers the rules of package rdma hold ("Sync events"
// there):
//
//   - After an addition, what the peer wrote earlier on the same connection is in place.
//   - After a set, this holds too on the software device. On adapters no standard promises it.
//   - With mmap.RelaxedOrdering, this need not hold after either.
//
// # Tasks
//
// For programs driven by callbacks, a [Context] on an engine (package pe) has pools of tasks
// that get, set, add and wait. A wait in flight does not spin, needs no goroutine, and lets
// its engine sleep. Stop ends it through its error callback (ErrFlushed).
//
// # Concurrency
//
// All methods of an Event are safe for concurrent use. Set, Add and Get allocate nothing; Set
// and Add take a lock only while a wait sleeps on the event. A Context, its pools and tasks
// belong to the goroutine that drives the engine, where all callbacks run.
package syncevent
