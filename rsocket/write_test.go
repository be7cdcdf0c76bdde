package rsocket

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// A peer that closes as soon as it has all of the data does not fail the call that wrote it.
func TestWriteToPeerThatThenCloses(t *testing.T) {
	for name, dev := range paths {
		t.Run(name, func(t *testing.T) {
			client, server := open(t, dev, Config{}), open(t, dev, Config{})
			for range 200 {
				near, far := connect(t, client, server)
				peer := make(chan error, 1)
				go func() {
					_, err := io.ReadFull(far, make([]byte, 10))
					_ = far.Close()
					peer <- err
				}()
				n, err := near.Write(make([]byte, 10))
				require.NoError(t, err)
				require.Equal(t, 10, n)
				require.NoError(t, <-peer)
				require.NoError(t, near.Close())
			}
		})
	}
}
