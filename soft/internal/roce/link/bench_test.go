package link

import (
	"testing"
	"time"
)

// One goroutine sends and receives, over loopback.
func benchmark(b *testing.B, cfg Config, payload, batch int) {
	cfg.Addr = loopback4
	tx, rx := listen(b, cfg), listen(b, cfg)
	const header, trailer = 28, 4
	data := make([]byte, payload)
	sink := make([]byte, payload)
	b.SetBytes(int64(payload))
	b.ReportAllocs()
	start := time.Now()
	for sent := 0; sent < b.N; {
		n := min(batch, b.N-sent)
		for range n {
			p, _ := tx.Packet(rx.Addr(), Header{}, header+payload+trailer)
			copy(p[header:], data)
		}
		if dropped, err := tx.Flush(); err != nil || dropped > 0 {
			b.Fatal(dropped, err)
		}
		for got := 0; got < n; {
			packets, err := rx.Receive()
			if err != nil {
				b.Fatal(err)
			}
			for _, p := range packets {
				copy(sink, p.Data[header:])
			}
			got += len(packets)
		}
		sent += n
	}
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "packets/s")
}

func BenchmarkSmall(b *testing.B) {
	for _, v := range variants {
		b.Run(v.name, func(b *testing.B) { benchmark(b, v.cfg, 8, 64) })
	}
}

func BenchmarkLarge(b *testing.B) {
	for _, v := range variants {
		b.Run(v.name, func(b *testing.B) { benchmark(b, v.cfg, 4096, 60) })
	}
}

// Two goroutines exchange a packet; the echo polls or sleeps.
func BenchmarkRoundTrip(b *testing.B) {
	for _, v := range []struct {
		name     string
		sleep    bool
		portable bool
	}{{"polling", false, false}, {"sleeping", true, false}, {"portable", true, true}} {
		b.Run(v.name, func(b *testing.B) {
			cfg := Config{Addr: loopback4, Portable: v.portable}
			a, e := listen(b, cfg), listen(b, cfg)
			data := make([]byte, 40)
			turn := func(s *Socket) bool {
				for {
					if v.sleep && s.Wait(time.Time{}) != nil {
						return false
					}
					if got, err := s.Receive(); len(got) > 0 || err != nil {
						return err == nil
					}
				}
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for turn(e) {
					put(e, a.Addr(), data)
					_, _ = e.Flush()
				}
			}()
			for b.Loop() {
				put(a, e.Addr(), data)
				_, _ = a.Flush()
				if !turn(a) {
					b.Fatal("closed")
				}
			}
			e.Close()
			<-done
		})
	}
}
