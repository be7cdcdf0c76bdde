package docs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-rdma/verbena/rsocket"
)

// newServer makes a server of HTTP/1.1 and HTTP/2, both in clear.
func newServer(handler http.Handler) *http.Server {
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	return server
}

// newTransport makes the transport of a client: HTTP/2 or else HTTP/1.1, since in clear the two ends
// do not negotiate.
func newTransport(http2 bool) *http.Transport {
	transport := &http.Transport{DialContext: rsocket.DialContext, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(!http2)
	transport.Protocols.SetUnencryptedHTTP2(http2)
	return transport
}

// listenTLS is tls.Listen over RDMA.
func listenTLS(addr string, cert tls.Certificate) (net.Listener, error) {
	l, err := rsocket.Listen(addr)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}}), nil
}

// dialTLS is tls.Dial over RDMA. The server's certificate is for name.
func dialTLS(ctx context.Context, addr, name string, roots *x509.CertPool) (*tls.Conn, error) {
	conn, err := rsocket.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	encrypted := tls.Client(conn, &tls.Config{ServerName: name, RootCAs: roots})
	if err := encrypted.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return encrypted, nil
}

// The handler tells which protocol has carried a request, and sends its body back.
var echoHandler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Protocol", r.Proto)
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/1.1: answer while the request arrives
	_, _ = io.Copy(w, r.Body)
})

// Both protocols carry requests of all sizes, in parallel.
func TestHTTP(t *testing.T) {
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	server := newServer(echoHandler)
	serve(t, func() error { return server.Serve(l) }, server)
	for _, http2 := range []bool{false, true} {
		protocol := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]
		t.Run(protocol, func(t *testing.T) {
			client := &http.Client{Transport: newTransport(http2)}
			defer client.CloseIdleConnections()
			exchangeAll(t, client, "http://"+l.Addr().String(), protocol)
		})
	}
}

// serve runs a server until the test ends.
func serve(t *testing.T, run func() error, server *http.Server) {
	ended := make(chan error, 1)
	go func() { ended <- run() }()
	t.Cleanup(func() {
		require.NoError(t, server.Shutdown(context.Background()))
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
	})
}

// exchangeAll makes requests of several sizes at a time, and compares the answers.
func exchangeAll(t *testing.T, client *http.Client, url, protocol string) {
	var exchanges sync.WaitGroup
	for _, size := range []int{0, 1, 10_000, 1 << 20, 5 << 20} {
		exchanges.Go(func() {
			body := make([]byte, size)
			_, _ = rand.Read(body)
			response, err := client.Post(url, "application/octet-stream", bytes.NewReader(body))
			if !assert.NoError(t, err) {
				return
			}
			answer, err := io.ReadAll(response.Body)
			assert.NoError(t, err)
			assert.NoError(t, response.Body.Close())
			assert.Equal(t, protocol, response.Header.Get("Protocol"))
			assert.True(t, bytes.Equal(body, answer), "%d bytes", size)
		})
	}
	exchanges.Wait()
}

// A server of http.Server.ServeTLS, and the client that knows its certificate: HTTP/2.
func TestHTTPS(t *testing.T) {
	cert, roots := newCertificate(t, "storage")
	l, err := rsocket.Listen("127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: echoHandler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	serve(t, func() error { return server.ServeTLS(l, "", "") }, server)
	client := &http.Client{Transport: &http.Transport{
		DialContext: rsocket.DialContext, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{ServerName: "storage", RootCAs: roots},
	}}
	defer client.CloseIdleConnections()
	exchangeAll(t, client, "https://"+l.Addr().String(), "HTTP/2.0")
}

func TestTLS(t *testing.T) {
	cert, roots := newCertificate(t, "storage")
	l, err := listenTLS("127.0.0.1:0", cert)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	served := make(chan error, 2)
	accept := func() {
		conn, err := l.Accept()
		if err == nil {
			_, err = io.Copy(conn, conn)
			_ = conn.Close()
		}
		served <- err
	}

	go accept()
	conn, err := dialTLS(context.Background(), l.Addr().String(), "storage", roots)
	require.NoError(t, err)
	sent := make([]byte, 3<<20)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.NoError(t, <-served)
	require.NoError(t, conn.Close())

	// A client that expects somebody else refuses the server.
	go accept()
	_, err = dialTLS(context.Background(), l.Addr().String(), "another", roots)
	var wrongName x509.HostnameError
	require.ErrorAs(t, err, &wrongName)
	require.Error(t, <-served)
}

// newCertificate makes a certificate that signs itself, and the pool that has it.
func newCertificate(t *testing.T, name string) (tls.Certificate, *x509.CertPool) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	leaf, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}
