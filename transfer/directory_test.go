package transfer_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/device"
	"github.com/verbena-rdma/verbena/transfer"
	"github.com/verbena-rdma/verbena/verbs"
)

// Names and addresses, such as those that a deployment tool writes.
func ExampleParseDirectory() {
	hosts, err := transfer.ParseDirectory([]byte("# caches\ncache-1 192.0.2.7:7600\ncache-2 192.0.2.8:7600 198.51.100.8:7600\n"))
	if err != nil {
		log.Fatal(err)
	}
	e, err := hosts.Find(context.Background(), "cache-2")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(e.Addrs)
	// Output: [192.0.2.8:7600 198.51.100.8:7600]
}

func TestParseDirectory(t *testing.T) {
	for text, want := range map[string]string{
		"a 192.0.2.1:1\n\n# b\nb":        "line 4: invalid argument: an agent has 1 to 8 addresses, not 0",
		"a 192.0.2.1:1 more":             `line 1: invalid argument: the address "more"`,
		"a" + strings.Repeat(" b:1", 9):  "not 9",
		"a b:1\na b:2":                   `line 2: the name "a": `,
		"a b":                            `line 1: invalid argument: the address "b"`,
		"a :1":                           "the address",
		"a b:0":                          "the address",
		"a b:65536":                      "the address",
		"a b:http":                       "the address",
		"a b:1/":                         "the address",
		"a b:1/0":                        "the address",
		"a b:1/16777216":                 "the address",
		strings.Repeat("a", 65) + " b:1": "the name",
		"a\x01 b:1":                      "the name",
		"\xff b:1":                       "the name",
		"a b:1\na " + strings.Repeat("b", 300) + ":1": "line 2: invalid argument: the address",
	} {
		_, err := transfer.ParseDirectory([]byte(text))
		require.ErrorContains(t, err, want, "%q", text)
	}
	file := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(file, []byte("a b"), 0o600))
	_, err := transfer.ReadDirectory(file)
	require.ErrorContains(t, err, file+": line 1: ")
	require.ErrorIs(t, err, transfer.ErrInvalid)
	_, err = transfer.ParseDirectory([]byte("a 192.0.2.1:4791/17 [2001:db8::1]:4791/16777215"))
	require.NoError(t, err)
	_, err = transfer.ReadDirectory(file + "2")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// What is read is what was written, and nothing else is read.
func FuzzDirectory(f *testing.F) {
	f.Add("a b:1\n#\n\n b [::1]:2 ")
	f.Add("0123456789abcdef 192.0.2.1:7600 b:1")
	f.Add("0123456789abcdef 192.0.2.1:4791/17")
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := transfer.ParseDirectory([]byte(text)); err == nil {
			var again strings.Builder
			for name, addrs := range d {
				fmt.Fprintf(&again, "%s %s\n", name, strings.Join(addrs, " "))
			}
			same, err := transfer.ParseDirectory([]byte(again.String()))
			require.NoError(t, err)
			require.Equal(t, d, same)
		} else {
			require.Regexp(t, "^line [1-9]", err.Error())
		}
		var e transfer.Entry
		if e.UnmarshalText([]byte(text)) == nil {
			again, err := e.MarshalText()
			require.NoError(t, err)
			require.Equal(t, text, string(again))
		}
	})
}

// entries is a Directory whose entries stay when their agents have gone, as those of killed programs do.
type entries map[string]transfer.Entry

func (d entries) Publish(_ context.Context, name string, e transfer.Entry) (func() error, error) {
	d[name] = e
	return func() error { delete(d, name); return nil }, nil
}

func (d entries) Find(_ context.Context, name string) (transfer.Entry, error) {
	if e, found := d[name]; found {
		return e, nil
	}
	return transfer.Entry{}, transfer.ErrNoAgent
}

// The entry of an agent that was opened again is not used, and its new one is.
func TestDialName(t *testing.T) {
	ctx, d := t.Context(), entries{}
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
	_, err = near.Publish(ctx, d, "near")
	require.ErrorContains(t, err, "does not listen")
	_, err = far.Publish(ctx, d, "far away")
	require.ErrorIs(t, err, transfer.ErrInvalid)
	_, err = far.Publish(ctx, d, "far")
	require.NoError(t, err)
	p, err := near.DialName(ctx, d, "far")
	require.NoError(t, err)
	p.Close()

	require.NoError(t, far.Close())
	addr := far.Addrs()[0].String()
	far = open(addr)
	_, err = near.DialName(ctx, d, "far")
	require.ErrorIs(t, err, transfer.ErrOldEntry)
	withdraw, err := far.Publish(ctx, d, "far")
	require.NoError(t, err)
	p, err = near.DialName(ctx, d, "far")
	require.NoError(t, err)
	p.Close()
	require.NoError(t, withdraw())

	static := transfer.StaticDirectory{"far": {addr}}
	withdraw, err = far.Publish(ctx, static, "far")
	require.NoError(t, err)
	require.NoError(t, withdraw())
	p, err = near.DialName(ctx, static, "far")
	require.NoError(t, err)
	require.Equal(t, []string{addr}, p.Addrs())
	p.Close()
	_, err = far.Publish(ctx, static, "near")
	require.ErrorIs(t, err, transfer.ErrNoAgent)
}
