// A program of plain sockets for TestGuestForeign, which runs it under librspreload.so.
//
//	echo serve ADDRESS PORT CONNECTIONS     returns the bytes of so many connections, one by one
//	echo dial ADDRESS PORT BYTES PIECE      sends bytes in pieces, and checks what comes back
//	echo memcached ADDRESS PORT CONNECTIONS stores values over so many connections at a time, and
//	                                        checks what comes back
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void fail(const char *what) {
	fprintf(stderr, "echo: %s: %s\n", what, strerror(errno));
	exit(1);
}

// No buffer has a multiple of 251 bytes.
static unsigned char pattern(size_t i) {
	return i % 251;
}

static void serve(int listener, long connections) {
	int on = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (listen(listener, 8) < 0) {
		fail("listen");
	}
	while (connections-- > 0) {
		static char buf[30000];
		ssize_t n;
		int s = accept(listener, NULL, NULL);
		if (s < 0) {
			fail("accept");
		}
		while ((n = recv(s, buf, sizeof buf, 0)) > 0) {
			for (ssize_t sent = 0, k; sent < n; sent += k) {
				k = send(s, buf + sent, n - sent, 0);
				if (k < 0) {
					fail("send");
				}
			}
		}
		if (n < 0) {
			fail("recv");
		}
		shutdown(s, SHUT_RDWR);
		close(s);
	}
}

// dial sends while it receives: a peer that returns every byte at once would otherwise fill both
// ends' buffers.
static void dial(int s, size_t bytes, size_t piece) {
	size_t sent = 0, received = 0;
	int ended = 0;
	unsigned char *out = malloc(piece), *in = malloc(piece);
	while (!ended) {
		struct pollfd p = {.fd = s, .events = POLLIN};
		if (sent < bytes) {
			p.events |= POLLOUT;
		}
		if (poll(&p, 1, -1) < 0) {
			fail("poll");
		}
		if (sent < bytes && p.revents & POLLOUT) {
			size_t n = bytes - sent < piece ? bytes - sent : piece;
			for (size_t i = 0; i < n; i++) {
				out[i] = pattern(sent + i);
			}
			ssize_t k = send(s, out, n, MSG_DONTWAIT);
			if (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
				fail("send");
			}
			if (k > 0 && (sent += k) == bytes && shutdown(s, SHUT_WR) < 0) {
				fail("shutdown");
			}
		}
		if (p.revents & (POLLIN | POLLHUP | POLLERR)) {
			ssize_t k = recv(s, in, piece, MSG_DONTWAIT);
			if (k < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
				fail("recv");
			}
			ended = k == 0;
			for (ssize_t i = 0; i < k; i++) {
				if (in[i] != pattern(received + i)) {
					fprintf(stderr, "echo: byte %zu is %d\n", received + i, in[i]);
					exit(1);
				}
			}
			received += k > 0 ? k : 0;
		}
	}
	close(s);
	printf("echo: %zu of %zu bytes came back\n", received, bytes);
	if (received != bytes) {
		exit(1);
	}
}

static int connected(struct sockaddr_in *a) {
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (s < 0) {
		fail("socket");
	}
	if (connect(s, (struct sockaddr *)a, sizeof *a) < 0) {
		fail("connect");
	}
	return s;
}

// memcached has a request and its answer under way on every connection at a time. It makes the
// values of the test in Go.
static void memcached(struct sockaddr_in *a, int connections) {
	enum { LARGEST = 100000, ROUNDS = 10 };
	static char out[LARGEST + 200], want[LARGEST + 200], in[LARGEST + 200];
	int *s = malloc(connections * sizeof *s);
	for (int i = 0; i < connections; i++) {
		s[i] = connected(a);
	}
	for (int j = 0; j <= ROUNDS; j++) {
		for (int receive = 0; receive <= 1; receive++) {
			for (int i = 0; i < connections; i++) {
				int size = 1 + i * j * 40, n, m;
				if (size > LARGEST) {
					errno = EMSGSIZE;
					fail("value");
				}
				n = sprintf(out, "set key-%d-%d 0 0 %d\r\n", i, j, size);
				m = sprintf(want, "STORED\r\nVALUE key-%d-%d 0 %d\r\n", i, j, size);
				for (int k = 0; k < size; k++) {
					out[n++] = want[m++] = pattern(i + k);
				}
				n += sprintf(out + n, "\r\nget key-%d-%d\r\n", i, j);
				m += sprintf(want + m, "\r\nEND\r\n");
				if (j == ROUNDS) {
					n = sprintf(out, "quit\r\n");
					m = 0;
				}
				if (!receive) {
					if (send(s[i], out, n, 0) != n) {
						fail("send");
					}
				} else if (j == ROUNDS) {
					if (recv(s[i], in, 1, 0) != 0) {
						fail("recv of the end");
					}
					close(s[i]);
				} else if (recv(s[i], in, m, MSG_WAITALL) != m || memcmp(in, want, m) != 0) {
					fail("recv of a value");
				}
			}
		}
	}
	printf("echo: %d connections\n", connections);
}

int main(int argc, char **argv) {
	struct sockaddr_in a = {.sin_family = AF_INET};
	if (argc < 5 || inet_pton(AF_INET, argv[2], &a.sin_addr) != 1) {
		fail("arguments");
	}
	a.sin_port = htons(atoi(argv[3]));
	if (strcmp(argv[1], "serve") == 0) {
		int s = socket(AF_INET, SOCK_STREAM, 0);
		if (s < 0) {
			fail("socket");
		}
		if (bind(s, (struct sockaddr *)&a, sizeof a) < 0) {
			fail("bind");
		}
		serve(s, atol(argv[4]));
		close(s);
		return 0;
	}
	if (strcmp(argv[1], "memcached") == 0) {
		memcached(&a, atoi(argv[4]));
		return 0;
	}
	if (argc < 6) {
		fail("arguments");
	}
	dial(connected(&a), strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
	return 0;
}
