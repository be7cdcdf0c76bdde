package etcd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/transfer"
	"github.com/verbena-rdma/verbena/verbs"
)

// Agents find each other; and one that was opened again is not taken for the earlier one, whose entry a
// killed program has left.
func TestDirectoryOfAgents(t *testing.T) {
	ctx, c, cfg := forever(t), newClient(t), directory(t)
	d := NewDirectory(c, cfg)
	dev, err := device.Open("soft-lo")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	open := func(listen string) *transfer.Agent {
		a, err := transfer.Open(transfer.Config{Devices: []verbs.Device{dev}, Listen: listen})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		return a
	}
	far, near := open("127.0.0.1:0"), open("")
	_, err = near.DialName(ctx, d, "far")
	require.ErrorIs(t, err, transfer.ErrNoAgent)
	withdrawFirst, err := far.Publish(ctx, d, "far")
	require.NoError(t, err)
	p, err := near.DialName(ctx, d, "far")
	require.NoError(t, err)
	p.Close()

	require.NoError(t, far.Close())
	far = open(far.Addrs()[0].String())
	_, err = near.DialName(ctx, d, "far")
	require.ErrorIs(t, err, transfer.ErrOldEntry)
	withdraw, err := far.Publish(ctx, d, "far")
	require.NoError(t, err)
	require.NoError(t, withdrawFirst()) // which leaves the later entry
	p, err = near.DialName(ctx, d, "far")
	require.NoError(t, err)
	p.Close()
	require.NoError(t, withdraw())
	_, err = d.Find(ctx, "far")
	require.ErrorIs(t, err, transfer.ErrNoAgent)

	_, err = c.Put(ctx, cfg.Prefix+"/far", "nonsense")
	require.NoError(t, err)
	_, err = near.DialName(ctx, d, "far")
	require.ErrorIs(t, err, transfer.ErrInvalid)
}

// An entry goes with its lease. Its program enters again, but not in place of another one.
func TestLeaseOfAgent(t *testing.T) {
	ctx, c, cfg := forever(t), newClient(t), expiring(t)
	d := NewDirectory(c, cfg)
	entry := transfer.Entry{Addrs: []string{"192.0.2.1:7600"}, Epoch: 1}
	withdraw, err := d.Publish(ctx, "agent", entry)
	require.NoError(t, err)
	lease := func() clientv3.LeaseID {
		for {
			r, err := c.Get(ctx, cfg.Prefix+"/agent")
			require.NoError(t, err)
			if len(r.Kvs) > 0 {
				return clientv3.LeaseID(r.Kvs[0].Lease)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	first := lease()
	require.NotZero(t, first)
	_, err = c.Revoke(ctx, first) // as the cluster does when the program is silent
	require.NoError(t, err)
	second := lease()
	require.NotEqual(t, first, second)

	other := transfer.Entry{Addrs: []string{"192.0.2.2:7600"}, Epoch: 2}
	withdrawOther, err := NewDirectory(c, directory(t)).Publish(ctx, "agent", other)
	require.NoError(t, err)
	_, err = c.Revoke(ctx, second)
	require.NoError(t, err)
	time.Sleep(2 * time.Second) // so that it notices, and could do wrong
	require.NoError(t, withdraw())
	found, err := d.Find(ctx, "agent")
	require.NoError(t, err)
	require.Equal(t, other, found)
	require.NoError(t, withdrawOther())
}
