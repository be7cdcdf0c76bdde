// Connection requests that a program does not read. Each part is a process:
//
//	requests listen ADDRESS            prints the ports of two listeners: one that reads no request, and one that accepts all
//	requests take-back ADDRESS PORT N  makes N requests, and takes each back
//	requests dial ADDRESS PORT DATA    connects
//
// A dial with the data "count" makes the first listener print how many events wait, and accept from
// then on.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s is false; errno %d (%s)\n", __LINE__, #condition, errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

static struct sockaddr_in address(const char *ip, __be16 port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = inet_addr(ip)};
}

static struct rdma_cm_id *listen_at(const char *ip)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in any = address(ip, 0);
	struct rdma_cm_id *id;

	CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == 0 && rdma_listen(id, 4) == 0);
	return id;
}

static struct rdma_cm_id *unread;

static void *serve(void *given);

static void count_unread(void)
{
	int fd = unread->channel->fd, flags = fcntl(fd, F_GETFL), count = 0;
	struct rdma_cm_event *event;
	pthread_t thread;

	CHECK(fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0);
	for (; rdma_get_cm_event(unread->channel, &event) == 0; count++)
		CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(errno == EAGAIN && fcntl(fd, F_SETFL, flags) == 0);
	printf("%d events\n", count);
	fflush(stdout);
	CHECK(pthread_create(&thread, NULL, serve, unread) == 0);
}

// serve accepts requests. The queue pairs need not exist.
static void *serve(void *given)
{
	struct rdma_cm_id *listener = given;
	struct rdma_conn_param param = {.qp_num = 77};
	struct rdma_cm_event *event;

	for (;;) {
		CHECK(rdma_get_cm_event(listener->channel, &event) == 0);
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			if (listener != unread && strcmp(event->param.conn.private_data, "count") == 0)
				count_unread();
			rdma_accept(event->id, &param); // fails if the peer has taken the request back
		}
		CHECK(rdma_ack_cm_event(event) == 0);
	}
	return NULL;
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	return event;
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next(channel);

	if (event->event != type) {
		fprintf(stderr, "%s with status %d, not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(1);
	}
	CHECK(rdma_ack_cm_event(event) == 0);
}

// request makes a request.
static struct rdma_cm_id *request(struct rdma_event_channel *channel, const char *ip, const char *port, const char *data)
{
	struct rdma_conn_param param = {.qp_num = 88, .retry_count = 7, .private_data = data, .private_data_len = strlen(data) + 1};
	struct sockaddr_in to = address(ip, htons(atoi(port)));
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rdma_connect(id, &param) == 0);
	return id;
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "listen") == 0) {
		struct rdma_cm_id *served;

		unread = listen_at(argv[2]);
		served = listen_at(argv[2]);
		printf("ports %d %d\n", ntohs(rdma_get_src_port(unread)), ntohs(rdma_get_src_port(served)));
		fflush(stdout);
		serve(served);
	} else if (argc == 5 && strcmp(argv[1], "take-back") == 0) {
		struct rdma_event_channel *channel = rdma_create_event_channel();

		for (int i = atoi(argv[4]); i > 0; i--) {
			struct rdma_cm_id *id = request(channel, argv[2], argv[3], "");

			usleep(1000); // or else it may end before it is sent
			CHECK(rdma_destroy_id(id) == 0);
		}
	} else if (argc == 5 && strcmp(argv[1], "dial") == 0) {
		struct rdma_event_channel *channel = rdma_create_event_channel();
		struct rdma_cm_id *id = request(channel, argv[2], argv[3], argv[4]);

		expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
		CHECK(rdma_establish(id) == 0);
		CHECK(rdma_destroy_id(id) == 0);
	} else {
		return 2;
	}
	return 0;
}
