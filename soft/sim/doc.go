// Package sim runs RDMA programs on simulated hosts: many in one test, in virtual time, from a
// seed. Each host has a device with all that the software device can do (RC, UC, UD, SRD, the
// connection manager, windows, multicast), and the network between them loses, delays,
// reorders and marks packets as the test says. Hosts crash, restart, stand still, are cut off.
// A fault that one seed in a thousand shows comes back whenever that seed is given.
//
//	func TestReplication(t *testing.T) {
//		sim.Check(t, 1000, func(s *sim.Sim) {
//			a, b := s.Host("a"), s.Host("b")
//			a.Run(func(ctx context.Context, dev verbs.Device) error { return serve(ctx, dev) })
//			b.Run(func(ctx context.Context, dev verbs.Device) error { return replicate(ctx, dev, a.Addr()) })
//			s.After(time.Second, b.Crash)
//			s.After(2*time.Second, b.Restart)
//			s.RunUntil(replicated, time.Minute)
//		})
//	}
//
// # Programs
//
// A program takes its device as an argument, where it would otherwise open one by name
// (package device), and is the same apart from that: callbacks or package await, Engine.Run or
// a loop around Engine.Progress. Only a file descriptor of the engine's is not there
// (Engine.NotificationFD). An engine can drive devices of several hosts, but not a simulated
// device beside another one. Connect by the connection manager, or hand descriptors over in
// memory: files and TCP connections are those of the system, and take no part in the
// simulation. [Host.Run] starts a program on a host; [Host.Device] is for tests that drive
// engines themselves.
//
// # Time
//
// In a bubble of testing/synctest, where [Check] runs its test, time is virtual: it stands
// still while a goroutine works, and jumps to the next event when all wait. An hour may take
// a second. Outside a bubble a simulation runs in real time, and not from its seed alone. Do
// not call synctest.Wait: the simulation does.
//
// A call of Engine.Progress that finds nothing takes 5 µs, and more the longer nothing happens, up
// to 82 ms, so that time passes fast for programs that poll, too.
//
// A goroutine that is blocked on a mutex, a file or a socket works, as synctest sees it. So do
// not hold a mutex over a call that waits, such as [Host.Sleep] or those of package await: if
// another goroutine wants the mutex, time stands still and the test hangs.
//
// # What the seed decides
//
// The simulation gives out one event at a time: a packet that arrives, a timer, a turn of an
// engine. Which of those that are due at the same moment comes first, which packets are lost,
// and all random numbers, keys, addresses of memory and queue pair numbers come from the seed.
// Engines let other goroutines go on after every callback, until all wait. So a run repeats
// exactly, with any number of processors, with the race detector and without, unless the
// program
//
//   - lets several of its goroutines on one host work at the same time: start them with
//     [Host.Go] in place of the go statement, have them wake by [Host.Sleep] in place of
//     time.Sleep, or let one engine call back instead;
//   - ranges over a map, or selects among several channels that are ready, where the order
//     matters;
//   - uses the system's time, timers (those of context.WithTimeout, too), random numbers, files
//     or sockets: use [Host.Now], [Host.Sleep], [Host.Rand] and [Host.Disk].
//
// [CheckSerial] makes most of these follow from the seed, too, for programs with ordinary goroutines, such as
// HTTP and gRPC over rsockets.
//
// [Check] runs the first seed twice, and names the first event in which the two runs differ.
// [Sim.Digest] is a digest of all events.
//
// # The network
//
// Any two hosts have a link of their own, with a latency of 5 µs and no limit of its rate
// ([Sim.SetDefaultLink], [Sim.Link]), unless switches join them ([Sim.Star], [Sim.Racks],
// [Sim.Connect]). Each direction of a link has its own configuration, and all can change while
// the simulation runs.
//
// # Repeating a failure
//
// The output of a failed test names the seed, and the smallest schedule of faults with which [Check] has
// seen it fail: as text, and as a test that calls [Replay]. With the seed, -sim.log writes all events to a
// file, and -sim.pcap the packets of each host:
//
//	go test -run '^TestReplication$' -sim.seed=417 -sim.log=log -sim.pcap=pcaps
//	tshark -r pcaps/a.pcap
package sim
