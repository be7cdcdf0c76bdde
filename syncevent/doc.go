// Package syncevent provides sync events: 64-bit values that one program waits
// for and another changes, on the same host or over RDMA.
//
// # Events
//
// [New] makes an [Event]. Its value is in memory of the library, in 8 bytes of the
// caller, or in a buffer. This program reads, sets and adds to it, and waits with
// [Event.Wait] until a [Condition] holds, from any goroutine. [Event.Export] makes the
// descriptor with which peers reach the value over RDMA.
//
// [Import] makes a handle of a peer's event. The value is in the peer's memory:
// the methods of the handle fail with ErrRemote, and the sync event tasks of
// package rdma work on it.
//
// # Publishers
//
// Config.Publishers says who changes the value: this program, its peers, or both.
// Peers get no more rights to the memory than they need for it. Where both change
// it, one's addition could be lost if the other changes the value at the same
// time, on adapters whose atomics are not atomic to the processor (IBTA 9.4.5.1).
// There New fails with ErrPublisher unless Config.NeverConcurrent promises that
// this does not happen.
//
// # Waiting
//
// A wait spins for about 50 µs, for a short delay. Then it sleeps, and is woken
//
//   - by Set, Add and tasks of this program: directly;
//   - by peers, on the software device: directly, by the packet that changes the
//     value. The packet is handled up to about 1 ms late if this program has just
//     stopped calling Progress in a loop without calling pe.Engine.Arm. Run and Arm
//     hand the device over to its own goroutine at once;
//   - by peers, on adapters, which do not report writes of peers: the value is
//     polled;
//   - by anything else that changes the 8 bytes of Config.Memory or Config.Buf, such
//     as the program's own stores to them: the value is polled.
//
// Polls come after an eighth of the time slept so far, but after
// Config.PollInterval at most; a change is noticed that much later. An event has
// one timer for all its sleeping waits, and it runs only while there are some.
//
// A wait checks the value first, so a change made before the wait began counts. A
// wait sees values, not changes: it may miss a value that another change replaces
// soon after. Where every change counts, use a value that only grows and [Greater].
//
// # Order
//
// Whoever sees a value that Set or Add has stored sees all that the program wrote
// before that. For changes by peers the rules of package rdma hold ("Sync events"
// there):
//
//   - After an addition, what the peer wrote earlier on the same connection is in
//     place.
//   - After a set it is too on the software device. On adapters no standard promises
//     it.
//   - With mmap.RelaxedOrdering it need not be after either.
//
// # Tasks
//
// For programs driven by callbacks, a [Context] on an engine (package pe) has pools
// of tasks that get, set, add and wait. A wait in flight does not spin, needs no
// goroutine, and lets its engine sleep. Stop ends it through its error callback
// (ErrFlushed).
//
// # Concurrency
//
// All methods of an Event are safe for concurrent use. Set, Add and Get allocate
// nothing; Set and Add take a lock only while somebody sleeps on the event. A
// Context, its pools and tasks belong to the goroutine that drives the engine,
// where all callbacks run.
package syncevent
