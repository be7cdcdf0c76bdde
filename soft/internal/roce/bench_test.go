package roce

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/verbs"
)

func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct{ size, batch int }{{8, 1}, {8, 64}, {4096, 64}, {65536, 16}, {1 << 20, 4}} {
		b.Run(fmt.Sprintf("%d bytes by %d", c.size, c.batch), func(b *testing.B) {
			x, y := openPair(b, Config{}, Config{}, max(c.size, 4096))
			wrs := make([]verbs.SendWR, c.batch)
			for i := range wrs {
				wrs[i] = verbs.SendWR{Op: verbs.OpWrite, SGL: []verbs.SGE{x.sge(0, c.size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
			}
			wrs[c.batch-1].Flags = verbs.FlagSignaled
			x.post(wrs...)
			x.wait(1)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			ahead := 0
			for done := 0; done < b.N; {
				for ahead < 4 {
					if _, err := x.qp.PostSend(wrs); err != nil {
						b.Fatal(err)
					}
					ahead++
				}
				n, err := x.cq.Poll(x.wcs)
				if err != nil {
					b.Fatal(err)
				}
				for _, wc := range x.wcs[:n] {
					if wc.Status != verbs.StatusSuccess {
						b.Fatal(wc.Status)
					}
				}
				ahead -= n
				done += n * c.batch
			}
			b.StopTimer()
			x.wait(ahead)
			for _, c := range must(x.dev.Counters()) {
				if c.Name == "completer_retry_err" {
					b.ReportMetric(float64(c.Value), "retries")
				}
			}
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
