package roce

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/verbs"
)

// closeFunc is a function as an io.Closer.
type closeFunc func() error

func (f closeFunc) Close() error { return f() }

// Each limit that a device reports is one that it enforces: as much as that works, and no more.
func TestReportedLimits(t *testing.T) {
	x := openSide(t, Config{}, 64)
	x.connect(x)
	d, pd := x.dev, x.dev.DefaultPD()
	ud := openUD(t, Config{})

	// So many are open already. Few more are allowed, so that the test can open them.
	const more = 3
	d.limits = limits{
		domains: more, regions: 1 + more, windows: more, addressHandles: more,
		queuePairs: 1 + more, completionQueues: 1 + more, sharedReceiveQueues: more,
	}
	ud.dev.limits.groupMembers = more
	attr := must(d.Query())
	attr.MaxMulticastQPs = must(ud.dev.Query()).MaxMulticastQPs

	qp := func(change func(*verbs.QPInit, int)) func(int) error {
		return func(n int) error {
			init := verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq}
			change(&init, n)
			q, err := pd.CreateQP(init)
			if err == nil {
				err = q.Close()
			}
			return err
		}
	}
	srq := func(init verbs.SRQInit) error {
		q, err := pd.CreateSRQ(init)
		if err == nil {
			err = q.Close()
		}
		return err
	}
	// each opens objects until it has n more than were open.
	each := func(open int, make func() (io.Closer, error)) func(int) error {
		return func(n int) error {
			var all []io.Closer
			defer func() {
				for _, c := range all {
					require.NoError(t, c.Close())
				}
			}()
			for range n - open {
				c, err := make()
				if err != nil {
					return err
				}
				all = append(all, c)
			}
			return nil
		}
	}
	self := verbs.AddressAttr{DGID: must(d.GIDs(1))[0].GID}
	tries := map[string]func(int) error{
		"MaxPD":  each(0, func() (io.Closer, error) { return d.AllocPD() }),
		"MaxMR":  each(1, func() (io.Closer, error) { return pd.RegMR(make([]byte, 8), 0) }),
		"MaxMW":  each(0, func() (io.Closer, error) { return pd.(verbs.WindowPD).AllocMW(verbs.MWType2) }),
		"MaxAH":  each(0, func() (io.Closer, error) { return pd.CreateAH(self) }),
		"MaxCQ":  each(1, func() (io.Closer, error) { return d.CreateCQ(verbs.CQInit{Capacity: 1}) }),
		"MaxSRQ": each(0, func() (io.Closer, error) { return pd.CreateSRQ(verbs.SRQInit{MaxWR: 1}) }),
		"MaxQP": each(1, func() (io.Closer, error) {
			return pd.CreateQP(verbs.QPInit{SendCQ: x.cq, RecvCQ: x.cq})
		}),
		"MaxMulticastQPs": each(0, func() (io.Closer, error) {
			group := gidOfGroup("239.255.72.99")
			q, err := ud.dev.DefaultPD().CreateQP(verbs.QPInit{Type: verbs.UD, SendCQ: ud.cq, RecvCQ: ud.cq})
			require.NoError(t, err)
			m := q.(verbs.MulticastQP)
			if err := m.AttachMulticast(group, 0); err != nil {
				return nil, errors.Join(err, q.Close())
			}
			return closeFunc(func() error { return errors.Join(m.DetachMulticast(group, 0), q.Close()) }), nil
		}),

		"MaxQPWR": qp(func(init *verbs.QPInit, n int) { init.MaxSendWR, init.MaxRecvWR = n, n }),
		"MaxSGE":  qp(func(init *verbs.QPInit, n int) { init.MaxSendSGE, init.MaxRecvSGE = n, n }),
		"MaxInline": qp(func(init *verbs.QPInit, n int) {
			init.MaxSendWR, init.MaxInline = 1, n
		}),
		"MaxCQE": func(n int) error {
			c, err := d.CreateCQ(verbs.CQInit{Capacity: n})
			if err == nil {
				err = c.Close()
			}
			return err
		},
		"MaxSRQWR":  func(n int) error { return srq(verbs.SRQInit{MaxWR: n}) },
		"MaxSRQSGE": func(n int) error { return srq(verbs.SRQInit{MaxWR: 1, MaxSGE: n}) },
	}
	// What has tests of its own, or is more than there is memory for.
	elsewhere := []string{"MaxMRSize", "MaxMessage", "MaxMulticastGroups", "MaxQPReadAtomic", "MaxInitReadAtomic"}
	value := reflect.ValueOf(attr)
	for _, field := range reflect.VisibleFields(value.Type()) {
		if !strings.HasPrefix(field.Name, "Max") {
			continue
		}
		try := tries[field.Name]
		if try == nil {
			assert.Contains(t, elsewhere, field.Name, "nothing tests the limit")
			continue
		}
		t.Run(field.Name, func(t *testing.T) {
			if field.Name == "MaxMulticastQPs" {
				requireMulticast(t)
			}
			limit := int(value.FieldByIndex(field.Index).Int())
			require.NoError(t, try(limit))
			require.ErrorIs(t, try(limit+1), verbs.ErrLimit)
			require.NoError(t, try(limit), "those that were closed count no more")
		})
	}
}

// Ports and indices that a device does not have are refused wherever they are named.
func TestReportedIndices(t *testing.T) {
	x := openSide(t, Config{}, 64)
	d, pd := x.dev, x.dev.DefaultPD()
	attr, port := must(d.Query()), must(d.QueryPort(1))
	self := verbs.AddressAttr{DGID: must(d.GIDs(1))[0].GID}
	for _, wrong := range []int{-1, 0, attr.Ports + 1, 7} {
		_, err := d.QueryPort(wrong)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		_, err = d.GIDs(wrong)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorIs(t, x.qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: wrong},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess), verbs.ErrInvalid)
	}
	for _, wrong := range []int{-1, 1} {
		require.ErrorIs(t, x.qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1, PKeyIndex: wrong},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess), verbs.ErrInvalid)
	}
	require.NoError(t, x.qp.Modify(verbs.QPAttr{State: verbs.QPInitialized, Port: 1}, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess))
	toRTR := func(address verbs.AddressAttr, reads int) error {
		return x.qp.Modify(verbs.QPAttr{
			State: verbs.QPReadyToReceive, PathMTU: 1024, DestQPN: x.qp.Num(), MaxDestReadAtomic: reads, Address: address,
		}, verbs.QPAttrState|verbs.QPAttrAddress|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|verbs.QPAttrMaxDestReadAtomic|verbs.QPAttrMinRNRTimer)
	}
	toRTS := func(reads int) error {
		return x.qp.Modify(verbs.QPAttr{State: verbs.QPReadyToSend, MaxInitReadAtomic: reads},
			verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCount|verbs.QPAttrRNRRetry|verbs.QPAttrMaxInitReadAtomic)
	}
	for _, change := range []func(*verbs.AddressAttr){
		func(a *verbs.AddressAttr) { a.Port = -1 },
		func(a *verbs.AddressAttr) { a.Port = attr.Ports + 1 },
		func(a *verbs.AddressAttr) { a.Port = 7 },
		func(a *verbs.AddressAttr) { a.SGIDIndex = -1 },
		func(a *verbs.AddressAttr) { a.SGIDIndex = port.GIDTable },
	} {
		wrong := self
		change(&wrong)
		_, err := pd.CreateAH(wrong)
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorIs(t, toRTR(wrong, 1), verbs.ErrInvalid)
	}
	require.ErrorIs(t, toRTR(self, attr.MaxQPReadAtomic+1), verbs.ErrInvalid)
	require.NoError(t, toRTR(self, attr.MaxQPReadAtomic))
	require.ErrorIs(t, toRTS(attr.MaxInitReadAtomic+1), verbs.ErrInvalid)
	require.NoError(t, toRTS(attr.MaxInitReadAtomic))
}

// BenchmarkCloseQueue closes completion queues of a device that has many.
func BenchmarkCloseQueue(b *testing.B) {
	x := openSide(b, Config{}, 64)
	for _, open := range []int{1 << 10, 1 << 15} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			all := make([]verbs.CQ, open)
			for i := range all {
				all[i] = must(x.dev.CreateCQ(verbs.CQInit{Capacity: 1}))
			}
			for i := 0; b.Loop(); i++ {
				at := i * 7919 % open
				if err := all[at].Close(); err != nil {
					b.Fatal(err)
				}
				all[at] = must(x.dev.CreateCQ(verbs.CQInit{Capacity: 1}))
			}
			for _, c := range all {
				require.NoError(b, c.Close())
			}
		})
	}
}
