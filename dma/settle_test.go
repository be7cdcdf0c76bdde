package dma_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/bufinv"
	"github.com/verbena-rdma/verbena/dma"
	"github.com/verbena-rdma/verbena/mmap"
	"github.com/verbena-rdma/verbena/pe"
	"github.com/verbena-rdma/verbena/soft"
	"github.com/verbena-rdma/verbena/test/faultydevice"
	"github.com/verbena-rdma/verbena/verbs"
)

// However a device fails, copies come back when the queue pair is destroyed, or the kernel
// says that the device is gone; otherwise with an error, and their memory is not given back
// before the device is closed.
func TestCopiesEndWhenTheDeviceLetsGo(t *testing.T) {
	for name, fail := range map[string]func(*faultydevice.Device, *dma.Context) error{
		"modify fails": func(d *faultydevice.Device, c *dma.Context) error {
			d.WithholdCompletions()
			d.RefuseError(faultydevice.ErrBroken)
			return c.Stop()
		},
		"stop brings nothing back": func(d *faultydevice.Device, c *dma.Context) error {
			d.Hang()
			return c.Stop()
		},
		"device fails": func(d *faultydevice.Device, _ *dma.Context) error {
			d.Hang()
			d.Report(verbs.Event{Type: verbs.EventDeviceFatal})
			return nil
		},
		"completion queue fails": func(d *faultydevice.Device, _ *dma.Context) error {
			d.RefuseError(nil)
			d.Set(func(h *faultydevice.Hooks) {
				h.Poll = func(verbs.CQ, []verbs.WC) (int, error) { return 0, verbs.ErrOverrun }
			})
			return nil
		},
		"completion queue fails while it stops": func(d *faultydevice.Device, c *dma.Context) error {
			d.Hang()
			if err := c.Stop(); err != nil {
				return err
			}
			d.Set(func(h *faultydevice.Hooks) {
				h.Poll = func(verbs.CQ, []verbs.WC) (int, error) { return 0, verbs.ErrOverrun }
			})
			return nil
		},
	} {
		for _, destroy := range []error{nil, faultydevice.ErrGone, faultydevice.ErrBroken} {
			kept := destroy == faultydevice.ErrBroken
			t.Run(name+", and the queue pair: "+errorText(destroy), func(t *testing.T) {
				dev := must(faultydevice.Open(soft.Config{}))
				engine, bufs := pe.New(pe.Config{}), must(bufinv.New(64))
				c := must(dma.New(dev, dma.Config{Engine: engine, PD: dev.DefaultPD()}))
				c.SetDrainTimeout(time.Millisecond)
				source, target := must(mmap.Alloc(dev, 1<<16, mmap.LocalReadWrite)), must(mmap.Alloc(dev, 1<<16, mmap.LocalReadWrite))
				asked := false
				var ended int
				pool := must(c.CopyPool(4, func(*dma.CopyTask) { assert.Fail(t, "it has succeeded") }, func(task *dma.CopyTask, err error) {
					ended++
					assert.True(t, asked, "the queue pair lives")
					assert.ErrorIs(t, err, dma.ErrFlushed)
					assert.Equal(t, kept, errors.Is(err, dma.ErrMemoryKept), "%v", err)
					assert.NoError(t, task.Free())
				}))
				dev.WithholdCompletions()
				require.NoError(t, c.Start())
				for i := range 4 {
					task := must(pool.Alloc(bufs.Source(source, 0, 4096), bufs.Target(target, 4096*i, 4096)))
					require.NoError(t, task.Submit())
				}
				dev.Set(func(h *faultydevice.Hooks) {
					h.DestroyQP = func(qp verbs.QP) error {
						asked = true
						if destroy != nil {
							return destroy
						}
						return qp.Close()
					}
				})
				require.NoError(t, fail(dev, c))
				r := &fixture{t: t, engine: engine}
				r.until("the context is Idle", func() bool { return c.State() == pe.Idle })
				require.Equal(t, 4, ended)
				require.NoError(t, c.Close())
				require.NoError(t, engine.Close())
				require.NoError(t, bufs.Close())
				for _, m := range []*mmap.Map{source, target} {
					if !kept {
						require.NoError(t, m.Close())
						continue
					}
					require.Error(t, c.Err())
					err := m.Close()
					require.ErrorIs(t, err, mmap.ErrInUse)
					require.ErrorIs(t, err, mmap.ErrMemoryKept)
					require.ErrorIs(t, m.RemoveDevice(dev), mmap.ErrMemoryKept)
				}
				require.NoError(t, dev.Close())
			})
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return "destroyed"
	}
	return err.Error()
}
