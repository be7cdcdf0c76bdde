package sim_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/soft/sim"
)

// A server whose clients come and go, while hosts crash, stand still and are cut off: when all is
// well again, every client reaches it, and it has room for all.
func TestClientsComeAndGo(t *testing.T) {
	sim.Check(t, 5, func(s *sim.Sim) {
		x := newServer(s)
		var clients []*sender
		for i := range 6 {
			clients = append(clients, newSender(s, fmt.Sprint("client", i), x.addr(), time.Duration(i+1)*20*time.Millisecond))
		}
		chaos := s.Nemesis(sim.Chaos{Interval: 500 * time.Millisecond, MaxDown: 4, Longest: 5 * time.Second, Until: 20 * time.Second})
		s.RunUntil(chaos.Done, time.Minute)
		for _, c := range clients {
			goal, messages := c.sent+10, x.messages
			s.RunUntil(func() bool { return c.sent >= goal }, 2*time.Minute)
			require.GreaterOrEqual(s, x.messages, messages)
		}
	})
}
