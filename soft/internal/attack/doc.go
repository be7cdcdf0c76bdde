// Package attack has tests that attack the software device: with forged packets, floods, peers
// that misbehave and malformed descriptors. It has nothing to import.
//
// The table in cases_linux_test.go says what each attack does, and the most that it may
// achieve. The victims are two processes with an idle and a busy connection, or with datagrams,
// which check all data. The attacker is a third process. It runs as an unprivileged user if the
// test is root, unless the case needs the victims' user. As another host, it has a network
// namespace of its own; as another container, a PID namespace of its own. Attackers know all
// numbers of the connections that they attack: what devices send is written to a page of memory
// that all processes share.
//
// In make test, each attack is short. VERBENA_ATTACK sets the duration of each for make attack,
// which prints the results.
package attack
