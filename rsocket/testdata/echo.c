// A program of plain sockets for TestGuestForeign, which runs it under librspreload.so.
//
//	echo serve ADDRESS PORT CONNECTIONS     returns the bytes of so many connections, one by one
//	echo dial ADDRESS PORT BYTES PIECE      sends bytes in pieces, and checks what comes back
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

int main(int argc, char **argv) {
	struct sockaddr_in a = {.sin_family = AF_INET};
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (argc < 5 || s < 0 || inet_pton(AF_INET, argv[2], &a.sin_addr) != 1) {
		fail("arguments or socket");
	}
	a.sin_port = htons(atoi(argv[3]));
	if (strcmp(argv[1], "serve") == 0) {
		if (bind(s, (struct sockaddr *)&a, sizeof a) < 0) {
			fail("bind");
		}
		serve(s, atol(argv[4]));
		close(s);
		return 0;
	}
	if (argc < 6) {
		fail("arguments");
	}
	if (connect(s, (struct sockaddr *)&a, sizeof a) < 0) {
		fail("connect");
	}
	dial(s, strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
	return 0;
}
