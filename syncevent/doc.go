// Package syncevent has sync events: 64-bit values that one side waits on and
// another, perhaps on another host, sets.
//
// # Events
//
// An [Event] is made by [New] where its value lives: in memory of the library's
// own, in 8 bytes of the caller's, or in a buffer. This program reads, sets and
// adds to it, and waits for it with [Event.WaitEqual], [Event.WaitNotEqual] and
// [Event.WaitGreater], from any goroutine. [Event.Export] makes the descriptor
// with which peers reach the value over RDMA.
//
// [Import] makes a handle of a peer's event. The value is in the peer's memory, so
// that nothing here works on it directly (ErrRemote): the sync event tasks of
// package rdma do.
//
// # Publishers
//
// Config.Publishers says who changes the value: this program, its peers, or both.
// Peers get no more rights to the memory than they need for it. With both, an
// addition of one must not get lost in a change of the other: on adapters whose
// atomics are not atomic to the processor (IBTA 9.4.5.1), New wants a promise that
// they take turns.
//
// # Waiting
//
// A wait spins for about 50 µs, so that what happens at once is seen at once. Then
// it sleeps, and is woken
//
//   - by Set, Add and tasks of this program: directly;
//   - by peers, on the software device: directly, by the packet that changes the
//     value. The packet may lie for about 1 ms when this program has just stopped
//     polling the device, with Progress in a loop, without pe.Engine.Arm; Run and
//     Arm say that the program sleeps;
//   - by peers, on adapters, which do not tell of what peers write: by a look at
//     the value from time to time;
//   - by whatever else changes the 8 bytes of Config.Memory or Config.Buf, such as
//     the program's own stores to them: in the same way.
//
// Looks come after an eighth of the time slept so far, which is how late a change
// can be noticed, and Config.PollInterval at most. One timer looks after all
// sleepers of an event, and none runs while nobody sleeps.
//
// Changes that happen while nobody waits are not lost, since a wait looks at the
// value first. But a wait sees values, not changes: a value that is there only for
// a moment may be missed. Use WaitGreater and a value that only grows where each
// change counts.
//
// # Order
//
// Whoever sees a value that Set or Add has stored sees all that the program wrote
// before that. For changes by peers, the rules of package rdma hold, under Sync
// events there: after an addition, what the peer wrote earlier on the same
// connection is in place; after a set, on the software device and, without a
// promise, on adapters; with mmap.RelaxedOrdering, neither.
//
// # Tasks
//
// The same is there for callback-driven programs: a [Context] on an engine
// (package pe) has pools of tasks that get, set, add and wait. A wait in flight
// sleeps from the start, needs no goroutine, and lets its engine sleep. Stop ends
// it through its error callback (ErrFlushed).
//
// # Concurrency
//
// All methods of an Event are safe for concurrent use. Set, Add and Get allocate
// nothing; Set and Add take a lock only while somebody sleeps on the event. A
// Context, its pools and tasks belong to the goroutine that drives the engine,
// where all callbacks run.
package syncevent
