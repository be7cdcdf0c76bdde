//go:build linux

package test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/test/netns"
)

// Programs see names without dashes, which libfabric would take for the beginning of something else.
// The user may write either form. Interfaces whose names differ in dashes only stay apart.
func TestNames(t *testing.T) {
	needProgram(t, "ibv_devices", "ibverbs-utils")
	n := netns.New(t)
	for i, name := range []string{"ve-th0", "ve-th1", "a-b", "a_b"} {
		n.IP(t, "link add %s type veth peer name p%d", name, i)
		n.IP(t, "addr add 10.77.%d.1/24 dev %s", i, name)
		n.IP(t, "link set p%d addrgenmode none up", i) // so it has no address
		n.IP(t, "link set %s addrgenmode none up", name)
	}
	names := func(devices string) (list []string) {
		out, err := run(t, plain.environment(t, "VERBENA_DEVICES="+devices), append(n.Run(), "ibv_devices")...)
		require.NoError(t, err, "%s", out)
		for _, word := range strings.Fields(out) {
			if strings.HasPrefix(word, "soft") {
				list = append(list, word)
				env := plain.environment(t, "VERBENA_DEVICES="+devices)
				info, err := run(t, env, append(n.Run(), "ibv_devinfo", "-d", word)...)
				require.NoError(t, err, "%s", info)
				assert.Contains(t, info, "PORT_ACTIVE")
			}
		}
		return list
	}
	all := names("")
	assert.Subset(t, all, []string{"soft_lo", "soft_ve_th0", "soft_ve_th1", "soft-a-b", "soft-a_b"})
	assert.NotContains(t, all, "soft_a_b")
	assert.Equal(t, []string{"soft_ve_th0", "soft_lo"}, names("soft-ve-th0 soft-lo"))
	assert.Equal(t, []string{"soft_ve_th0", "soft_lo"}, names("soft_ve_th0?loss=0.1 soft_lo"))
	assert.Equal(t, []string{"soft_10.77.1.1"}, names("soft-10.77.1.1"))
	assert.Equal(t, []string{"soft_a_b"}, names("soft-a-b"))
}
