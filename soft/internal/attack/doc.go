// Package attack is the attacker of the software device, as tests: forged packets, floods,
// peers that misbehave and descriptors that lie. It has nothing to import.
//
// The table in rows_linux_test.go says of each attack what it does and what it may achieve at
// most. The victims are two processes with an idle and a busy connection, or datagrams, which
// check all data; the attacker is a third one, which runs as nobody where the test is root
// and the row does not want the victims' user, and in a network namespace of its own where it is
// another host, or in a PID namespace of its own where it is another container. Attackers are told every
// number of the connections that they attack, also of busy ones: what devices send is written
// to a page that all processes share.
//
// In make test each attack takes a moment. VERBENA_ATTACK is how long each takes in make attack,
// which prints what came of them.
package attack
