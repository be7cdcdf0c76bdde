// Checks of librdmacm's functions, each by its name as the argument. All ends are in this process.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s is false; errno %d (%s)\n", __LINE__, #condition, errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

#define CHECK_FAILS(call, with) \
	do { \
		errno = 0; \
		CHECK((call) == -1); \
		CHECK(errno == (with)); \
	} while (0)

static struct rdma_event_channel *channel;

static struct sockaddr_in address(const char *ip, __be16 port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = inet_addr(ip)};

	return a;
}

static struct rdma_cm_event *next(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type) {
		fprintf(stderr, "%s with status %d, not %s\n", rdma_event_str(event->event), event->status, rdma_event_str(type));
		exit(1);
	}
	return event;
}

static void expect(enum rdma_cm_event_type type, struct rdma_cm_id *id)
{
	struct rdma_cm_event *event = next(type);

	CHECK(event->id == id);
	CHECK(event->status == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
}

static struct rdma_cm_id *new_id(enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, &channel, space) == 0);
	CHECK(id->context == &channel && id->channel == channel && !id->verbs && !id->qp && id->ps == space);
	return id;
}

static struct rdma_cm_id *listen_on(const char *ip, enum rdma_port_space space)
{
	struct rdma_cm_id *id = new_id(space);
	struct sockaddr_in any = address(ip, 0);

	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == 0);
	CHECK(rdma_get_src_port(id) != 0);
	CHECK(rdma_listen(id, 8) == 0);
	return id;
}

static struct rdma_cm_id *resolved(__be16 port, enum rdma_port_space space)
{
	struct rdma_cm_id *id = new_id(space);
	struct sockaddr_in to = address("127.0.0.1", port);

	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, id);
	CHECK(id->verbs && id->pd && id->port_num == 1 && rdma_get_dst_port(id) == port);
	CHECK(id->route.addr.src_addr.sa_family == AF_INET && rdma_get_src_port(id) != 0);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED, id);
	CHECK(id->route.num_paths == 1 && id->route.path_rec && id->route.path_rec->mtu == IBV_MTU_4096);
	CHECK(memcmp(&id->route.path_rec->sgid, &id->route.addr.addr.ibaddr.sgid, 16) == 0);
	return id;
}

// give_qp_with makes a queue pair whose receives complete in a queue of the program; NULL: in one
// of the identifier.
static void give_qp_with(struct rdma_cm_id *id, struct ibv_cq *receives)
{
	struct ibv_qp_init_attr attr = {.cap = {4, 4, 1, 1, 0}, .qp_type = id->qp_type, .recv_cq = receives};

	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(id->qp && id->send_cq && id->send_cq_channel && id->qp->pd == id->pd);
	CHECK(receives ? !id->recv_cq && !id->recv_cq_channel : id->recv_cq && id->recv_cq_channel);
}

static void give_qp(struct rdma_cm_id *id)
{
	give_qp_with(id, NULL);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

static void end(struct rdma_cm_id *id)
{
	rdma_destroy_ep(id);
}

// connect_pair_with makes a connection with queue pairs at both ends. receives is for the passive
// end, as in give_qp_with.
static void connect_pair_with(struct rdma_cm_id *listener, struct rdma_cm_id **active, struct rdma_cm_id **passive, struct ibv_cq *receives)
{
	struct rdma_conn_param param = {.private_data = "hello", .private_data_len = 6, .responder_resources = 2, .initiator_depth = 3, .retry_count = 5, .rnr_retry_count = 6};
	struct rdma_cm_event *event;

	*active = resolved(rdma_get_src_port(listener), RDMA_PS_TCP);
	give_qp(*active);
	CHECK(state_of((*active)->qp) == IBV_QPS_INIT);
	CHECK(rdma_connect(*active, &param) == 0);
	event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	*passive = event->id;
	CHECK(event->listen_id == listener && *passive != listener && (*passive)->verbs == (*active)->verbs);
	CHECK((*passive)->context == &channel && rdma_get_src_port(*passive) == rdma_get_src_port(listener));
	CHECK(rdma_get_dst_port(*passive) == rdma_get_src_port(*active) && (*passive)->route.num_paths == 1);
	CHECK(event->param.conn.private_data_len >= 6 && strcmp(event->param.conn.private_data, "hello") == 0);
	CHECK(event->param.conn.responder_resources == 3 && event->param.conn.initiator_depth == 2);
	CHECK(event->param.conn.retry_count == 5 && event->param.conn.rnr_retry_count == 6 && event->param.conn.qp_num == (*active)->qp->qp_num);
	give_qp_with(*passive, receives);
	param.private_data = "welcome";
	param.private_data_len = 8;
	CHECK(rdma_accept(*passive, &param) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(RDMA_CM_EVENT_ESTABLISHED); // which a response becomes
	CHECK(event->id == *active && strcmp(event->param.conn.private_data, "welcome") == 0);
	CHECK(event->param.conn.qp_num == (*passive)->qp->qp_num);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, *passive);
	CHECK(state_of((*active)->qp) == IBV_QPS_RTS && state_of((*passive)->qp) == IBV_QPS_RTS);
}

static void connect_pair(struct rdma_cm_id *listener, struct rdma_cm_id **active, struct rdma_cm_id **passive)
{
	connect_pair_with(listener, active, passive, NULL);
}

// expect_both expects an event of each of two identifiers, in any order.
static void expect_both(enum rdma_cm_event_type type, struct rdma_cm_id *a, struct rdma_cm_id *b)
{
	struct rdma_cm_event *event = next(type);
	struct rdma_cm_id *first = event->id;

	CHECK(first == a || first == b);
	CHECK(event->status == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	expect(type, first == a ? b : a);
}

static char data[16] = "0123456789abcde", got[16];
static struct ibv_mr *target;

static void transfer_posted(struct rdma_cm_id *to)
{
	memset(got, 0, sizeof got);
	target = rdma_reg_msgs(to, got, sizeof got);
	CHECK(target);
	CHECK(rdma_post_recv(to, NULL, got, sizeof got, target) == 0);
}

static void transfer(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	struct ibv_mr *source = rdma_reg_msgs(from, data, sizeof data);
	struct ibv_wc wc;

	CHECK(source);
	CHECK(rdma_post_send(from, NULL, data, sizeof data, source, IBV_SEND_SIGNALED) == 0);
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof data);
	CHECK(strcmp(got, data) == 0);
	CHECK(rdma_dereg_mr(source) == 0 && rdma_dereg_mr(target) == 0);
}

static void connection(void)
{
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP), *active, *passive;

	connect_pair(listener, &active, &passive);
	transfer_posted(passive);
	transfer(active, passive);
	transfer_posted(active);
	transfer(passive, active);
	CHECK(rdma_disconnect(active) == 0);
	CHECK(state_of(active->qp) == IBV_QPS_ERR);
	expect_both(RDMA_CM_EVENT_DISCONNECTED, active, passive);
	CHECK(rdma_disconnect(passive) == 0);
	CHECK(rdma_disconnect(active) == 0); // again
	for (int i = 0; i < 2; i++)
		CHECK(rdma_ack_cm_event(next(RDMA_CM_EVENT_TIMEWAIT_EXIT)) == 0);
	end(active);
	end(passive);
	end(listener);
}

static void wildcard(void)
{
	struct rdma_cm_id *listener = listen_on("0.0.0.0", RDMA_PS_TCP), *active, *passive;
	struct ibv_context **devices;
	int count;

	CHECK(!listener->verbs && !listener->pd);
	connect_pair(listener, &active, &passive);
	devices = rdma_get_devices(&count);
	CHECK(devices && count > 0 && !devices[count]);
	CHECK(devices[0] == active->verbs);
	rdma_free_devices(devices);
	end(active);
	end(passive);
	end(listener);
}

static void rejection(void)
{
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP), *active = resolved(rdma_get_src_port(listener), RDMA_PS_TCP);
	struct rdma_cm_event *event;

	give_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_reject(event->id, "go away", 8) == 0);
	end(event->id);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == active && event->status == 28 && strcmp(event->param.conn.private_data, "go away") == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(state_of(active->qp) == IBV_QPS_ERR);
	end(active);
	end(listener);
}

static void nobody_listens(void)
{
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP), *active;
	struct rdma_cm_event *event;
	__be16 port = rdma_get_src_port(listener);

	end(listener);
	active = resolved(port, RDMA_PS_TCP);
	give_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	event = next(RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 8);
	CHECK(rdma_ack_cm_event(event) == 0);
	end(active);
}

// The program has a queue pair of its own, and moves it with the attributes of rdma_init_qp_attr.
static void own_qp(void)
{
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP), *ends[2];
	struct ibv_qp *qps[2];
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	struct rdma_cm_event *event = NULL;
	struct ibv_qp_attr attr;
	int mask;

	ends[0] = resolved(rdma_get_src_port(listener), RDMA_PS_TCP);
	attr.qp_state = IBV_QPS_RTR;
	CHECK_FAILS(rdma_init_qp_attr(ends[0], &attr, &mask), EINVAL);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};

		if (i == 1) {
			CHECK(rdma_connect(ends[0], &param) == 0);
			event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
			ends[1] = event->id;
		}
		init.send_cq = init.recv_cq = ibv_create_cq(ends[i]->verbs, 2, NULL, NULL, 0);
		qps[i] = ibv_create_qp(ends[i]->pd, &init);
		CHECK(qps[i]);
		param.qp_num = qps[i]->qp_num;
	}
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		attr.qp_state = state;
		CHECK(rdma_init_qp_attr(ends[1], &attr, &mask) == 0 && attr.qp_state == state);
		CHECK(ibv_modify_qp(qps[1], &attr, mask) == 0);
	}
	CHECK(rdma_accept(ends[1], &param) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->id == ends[0] && event->param.conn.qp_num == qps[1]->qp_num);
	CHECK(rdma_ack_cm_event(event) == 0);
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		attr.qp_state = state;
		CHECK(rdma_init_qp_attr(ends[0], &attr, &mask) == 0);
		CHECK(ibv_modify_qp(qps[0], &attr, mask) == 0);
	}
	CHECK(attr.sq_psn <= 0xffffff);
	CHECK(rdma_establish(ends[0]) == 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, ends[1]);
	for (int i = 0; i < 2; i++) {
		struct ibv_cq *cq = qps[i]->send_cq;

		end(ends[i]);
		CHECK(ibv_destroy_qp(qps[i]) == 0 && ibv_destroy_cq(cq) == 0);
	}
	end(listener);
}

static void datagrams(void)
{
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_UDP), *active = resolved(rdma_get_src_port(listener), RDMA_PS_UDP), *passive;
	struct rdma_conn_param param = {.private_data = "who", .private_data_len = 4};
	struct rdma_cm_event *event;
	char data[] = "datagram", got[40 + sizeof data];
	struct ibv_mr *source, *target;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	give_qp(active);
	CHECK(state_of(active->qp) == IBV_QPS_RTS);
	CHECK(rdma_connect(active, &param) == 0);
	event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	passive = event->id;
	CHECK(strcmp(event->param.ud.private_data, "who") == 0);
	give_qp(passive);
	target = rdma_reg_msgs(passive, got, sizeof got);
	CHECK(rdma_post_recv(passive, NULL, got, sizeof got, target) == 0);
	param.qp_num = passive->qp->qp_num;
	CHECK(rdma_accept(passive, &param) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	event = next(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.ud.qp_num == passive->qp->qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
	ah = ibv_create_ah(active->pd, &event->param.ud.ah_attr);
	source = rdma_reg_msgs(active, data, sizeof data);
	CHECK(ah && source);
	CHECK(rdma_post_ud_send(active, NULL, data, sizeof data, source, IBV_SEND_SIGNALED, ah, event->param.ud.qp_num) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_get_send_comp(active, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(passive, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(strcmp(got + 40, data) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && rdma_dereg_mr(source) == 0 && rdma_dereg_mr(target) == 0);
	end(active);
	end(passive);
	end(listener);
}

static void multicast(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_UDP);
	struct sockaddr_in local = address("127.0.0.1", 0), group = address("239.7.7.7", 0);
	struct rdma_cm_event *event;
	int mark;

	CHECK_FAILS(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EINVAL); // no device yet
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&local) == 0);
	give_qp(id);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, &mark) == 0);
	event = next(RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->param.ud.private_data == &mark && event->param.ud.qp_num == 0xffffff && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(memcmp(event->param.ud.ah_attr.grh.dgid.raw + 12, &group.sin_addr, 4) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == 0);
	CHECK_FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == 0); // before its event is read
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
	CHECK(rdma_ack_cm_event(next(RDMA_CM_EVENT_MULTICAST_JOIN)) == 0);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == 0);
	end(id);
}

static void migration(void)
{
	struct rdma_event_channel *other = rdma_create_event_channel(), *first = channel;
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP), *active = resolved(rdma_get_src_port(listener), RDMA_PS_TCP);
	struct rdma_conn_param param = {.qp_num = 77};
	struct pollfd waits = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;

	CHECK(rdma_connect(active, &param) == 0);
	CHECK(poll(&waits, 1, 20000) == 1);
	CHECK(rdma_migrate_id(listener, other) == 0 && listener->channel == other);
	CHECK(poll(&waits, 1, 0) == 0);
	channel = other;
	event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == listener && event->id->channel == other);
	CHECK(rdma_reject(event->id, NULL, 0) == 0);
	end(event->id);
	CHECK(rdma_ack_cm_event(event) == 0);
	channel = first;
	CHECK(rdma_ack_cm_event(next(RDMA_CM_EVENT_REJECTED)) == 0);
	end(active);
	end(listener);
	rdma_destroy_event_channel(other);
}

static void *synchronous_client(void *port)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC}, *info;
	struct rdma_cm_id *id;

	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}};

		CHECK(rdma_getaddrinfo("127.0.0.1", port, &hints, &info) == 0);
		CHECK(rdma_create_ep(&id, info, NULL, &attr) == 0);
		rdma_freeaddrinfo(info);
		CHECK(id->qp && id->verbs && id->event);
		if (i == 0) {
			CHECK_FAILS(rdma_connect(id, NULL), ECONNREFUSED);
		} else {
			CHECK(rdma_connect(id, NULL) == 0);
			CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
			CHECK(rdma_disconnect(id) == 0);
			CHECK(rdma_disconnect(id) == 0); // again: it must not wait
		}
		rdma_destroy_ep(id);
	}
	return NULL;
}

static void synchronous(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC}, *info;
	struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}};
	struct rdma_cm_id *listener, *id;
	char port[8];
	pthread_t client;

	CHECK(rdma_getaddrinfo(NULL, "0", &hints, &info) == 0);
	CHECK(info->ai_src_len && !info->ai_dst_len);
	CHECK(rdma_create_ep(&listener, info, NULL, &attr) == 0);
	rdma_freeaddrinfo(info);
	CHECK(rdma_listen(listener, 0) == 0);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	CHECK(pthread_create(&client, NULL, synchronous_client, port) == 0);
	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->qp && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_reject(id, NULL, 0) == 0);
	rdma_destroy_ep(id);
	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(rdma_accept(id, NULL) == 0);
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(pthread_join(client, NULL) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

static void *wait_for_none(void *given)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(given, &event);
	return NULL;
}

// Events that nobody has read vanish with their identifier, and requests with their listener.
static void destruction(void)
{
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP), *active = resolved(rdma_get_src_port(listener), RDMA_PS_TCP), *idle = new_id(RDMA_PS_TCP);
	struct rdma_conn_param param = {.qp_num = 77};
	struct pollfd waits = {.fd = channel->fd, .events = POLLIN};
	struct sockaddr_in to = address("127.0.0.1", htons(7));
	struct rdma_cm_event *event;
	pthread_t late;

	CHECK(rdma_resolve_addr(idle, NULL, (struct sockaddr *)&to, 1000) == 0);
	CHECK(poll(&waits, 1, 20000) == 1);
	end(idle);
	CHECK(poll(&waits, 1, 0) == 0);
	CHECK(rdma_connect(active, &param) == 0);
	CHECK(poll(&waits, 1, 20000) == 1);
	end(listener);
	event = next(RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == active);
	CHECK(rdma_ack_cm_event(event) == 0);
	fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	CHECK_FAILS(rdma_get_cm_event(channel, &event), EAGAIN);
	// A channel that goes before its identifier.
	rdma_destroy_event_channel(channel);
	CHECK_FAILS(rdma_disconnect(active), EINVAL);
	// Threads that come to wait for its events wait.
	CHECK(pthread_create(&late, NULL, wait_for_none, channel) == 0);
	usleep(100000);
	CHECK(pthread_tryjoin_np(late, NULL) == EBUSY);
	end(active);
	channel = rdma_create_event_channel();
}

// Requests that end before the program reads them vanish, but for one that is alone, since the program
// may have seen that there is an event.
static void unread_requests(void)
{
	struct rdma_event_channel *own = channel, *other = rdma_create_event_channel();
	struct rdma_conn_param param = {.qp_num = 77};
	struct rdma_cm_id *listener, *last = listen_on("127.0.0.1", RDMA_PS_TCP), *active;
	struct rdma_cm_event *event;
	int unread = 0;

	CHECK(channel = other);
	listener = listen_on("127.0.0.1", RDMA_PS_TCP);
	channel = own;
	for (int i = 0; i < 200; i++) {
		active = resolved(rdma_get_src_port(listener), RDMA_PS_TCP);
		CHECK(rdma_connect(active, &param) == 0);
		usleep(1000); // or else it may end before it is sent
		end(active);
	}
	// A request that comes after all of them.
	active = resolved(rdma_get_src_port(last), RDMA_PS_TCP);
	CHECK(rdma_connect(active, &param) == 0);
	event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	end(event->id);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_ack_cm_event(next(RDMA_CM_EVENT_REJECTED)) == 0);
	end(active);
	CHECK(!fcntl(other->fd, F_SETFL, fcntl(other->fd, F_GETFL) | O_NONBLOCK));
	for (; rdma_get_cm_event(other, &event) == 0; unread++)
		CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(errno == EAGAIN && unread <= 20);
	// The listener goes on.
	active = resolved(rdma_get_src_port(listener), RDMA_PS_TCP);
	CHECK(!fcntl(other->fd, F_SETFL, fcntl(other->fd, F_GETFL) & ~O_NONBLOCK));
	CHECK(rdma_connect(active, &param) == 0);
	channel = other;
	event = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	end(event->id);
	CHECK(rdma_ack_cm_event(event) == 0);
	channel = own;
	CHECK(rdma_ack_cm_event(next(RDMA_CM_EVENT_REJECTED)) == 0);
	end(active);
	end(last);
	end(listener);
	rdma_destroy_event_channel(other);
}

static void *acknowledge(void *event)
{
	usleep(100000);
	CHECK(rdma_ack_cm_event(event) == 0);
	return event;
}

// rdma_destroy_id waits until events are acknowledged.
static void acknowledgement(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct sockaddr_in to = address("127.0.0.1", htons(7));
	pthread_t other;

	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
	CHECK(pthread_create(&other, NULL, acknowledge, next(RDMA_CM_EVENT_ADDR_RESOLVED)) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(pthread_join(other, NULL) == 0);
}

static void errors(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP), *other = new_id(RDMA_PS_TCP), *wrong;
	struct sockaddr_in local = address("127.0.0.1", 0), foreign = address("198.51.100.7", htons(7)), own;
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT, .sin6_port = htons(7)};
	struct sockaddr infiniband = {.sa_family = 27}; // AF_IB
	struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	uint8_t tos = 0x20, timeout = 20, data[57] = "one byte too many";
	struct rdma_conn_param param = {.private_data = data, .private_data_len = sizeof data};
	int on = 1;

	CHECK_FAILS(rdma_create_id(channel, &wrong, NULL, 0x99), EOPNOTSUPP);
	CHECK_FAILS(rdma_bind_addr(id, (struct sockaddr *)&foreign), EADDRNOTAVAIL);
	CHECK_FAILS(rdma_bind_addr(id, &infiniband), EINVAL);
	CHECK_FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	CHECK_FAILS(rdma_resolve_route(id, 1000), EINVAL);
	CHECK_FAILS(rdma_connect(id, NULL), EINVAL);
	CHECK_FAILS(rdma_accept(id, NULL), EINVAL);
	CHECK_FAILS(rdma_disconnect(id), EINVAL);
	CHECK_FAILS(rdma_reject(id, NULL, 0), EINVAL);
	CHECK_FAILS(rdma_get_request(id, &wrong), EINVAL);
	CHECK(rdma_get_src_port(id) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&local) == 0 && id->verbs);
	CHECK_FAILS(rdma_bind_addr(id, (struct sockaddr *)&local), EINVAL);
	own = local;
	own.sin_port = rdma_get_src_port(id);
	CHECK_FAILS(rdma_bind_addr(other, (struct sockaddr *)&own), EADDRINUSE);
	CHECK_FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&six, 1000), EINVAL);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on) == 0);
	CHECK(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on) == 0);
	CHECK(rdma_bind_addr(other, (struct sockaddr *)&own) == 0);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof on), EINVAL);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &on, sizeof on), EINVAL);
	CHECK_FAILS(rdma_set_option(id, 99, 0, &on, sizeof on), ENOSYS);
	end(other);
	end(id);
	id = resolved(htons(7), RDMA_PS_TCP);
	give_qp(id);
	CHECK(id->qp);
	CHECK_FAILS(rdma_create_qp(id, NULL, &attr), EINVAL);
	CHECK_FAILS(rdma_connect(id, &param), EINVAL);
	end(id);
}

static void forked(void)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	int status;
	pid_t child = fork();

	if (child == 0) {
		struct sockaddr_in local = address("127.0.0.1", 0);

		CHECK_FAILS(rdma_bind_addr(id, (struct sockaddr *)&local), EPERM);
		CHECK_FAILS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), EPERM);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	end(id);
}

enum { STRESS_CLIENTS = 4, STRESS_ROUNDS = 40 };

static struct rdma_cm_event *next_on(struct rdma_event_channel *own)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(own, &event) == 0);
	return event;
}

static void acknowledge_next(struct rdma_event_channel *own, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = next_on(own);

	CHECK(event->event == type);
	CHECK(rdma_ack_cm_event(event) == 0);
}

// stress_client connects, and gives up at each point in turn.
static void *stress_client(void *port)
{
	struct sockaddr_in to = address("127.0.0.1", *(__be16 *)port);
	struct ibv_qp_init_attr attr;

	for (int round = 0; round < STRESS_ROUNDS; round++) {
		struct rdma_event_channel *own = rdma_create_event_channel();
		int point = round % 6;
		struct rdma_cm_id *id;

		CHECK(own && rdma_create_id(own, &id, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
		if (point == 0)
			goto end;
		acknowledge_next(own, RDMA_CM_EVENT_ADDR_RESOLVED);
		attr = (struct ibv_qp_init_attr){.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
		CHECK(rdma_create_qp(id, NULL, &attr) == 0);
		CHECK(rdma_resolve_route(id, 1000) == 0);
		if (point == 1)
			goto end;
		acknowledge_next(own, RDMA_CM_EVENT_ROUTE_RESOLVED);
		CHECK(rdma_connect(id, NULL) == 0);
		if (point == 2)
			goto end;
		if (point == 3) { // while the server responds
			struct pollfd waits = {.fd = own->fd, .events = POLLIN};

			CHECK(poll(&waits, 1, -1) == 1);
			goto end;
		}
		struct rdma_cm_event *event = next_on(own);
		bool established = event->event == RDMA_CM_EVENT_ESTABLISHED;

		CHECK(established || event->event == RDMA_CM_EVENT_REJECTED);
		CHECK(rdma_ack_cm_event(event) == 0);
		if (point == 5 && established) {
			CHECK(rdma_disconnect(id) == 0);
			acknowledge_next(own, RDMA_CM_EVENT_DISCONNECTED);
		}
end:
		if (round % 2) // wrong, but not fatal
			rdma_destroy_event_channel(own);
		rdma_destroy_ep(id);
		if (round % 2 == 0)
			rdma_destroy_event_channel(own);
	}
	return NULL;
}

static void *stress_clients(void *port)
{
	pthread_t clients[STRESS_CLIENTS];
	struct rdma_cm_id *id;
	struct sockaddr_in to = address("127.0.0.1", 0);

	for (int i = 0; i < STRESS_CLIENTS; i++)
		CHECK(pthread_create(&clients[i], NULL, stress_client, port) == 0);
	for (int i = 0; i < STRESS_CLIENTS; i++)
		CHECK(pthread_join(clients[i], NULL) == 0);
	// The end, for the server.
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) == 0);
	return id;
}

// Many threads connect at a time, and give up at every point.
static void stress(void)
{
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP);
	__be16 port = rdma_get_src_port(listener);
	pthread_t clients;
	int requests = 0;

	CHECK(pthread_create(&clients, NULL, stress_clients, &port) == 0);
	for (bool over = false; !over;) {
		struct rdma_cm_event *event = next_on(channel);
		struct rdma_cm_id *id = event->id;
		bool ends = event->event == RDMA_CM_EVENT_DISCONNECTED || event->event == RDMA_CM_EVENT_REJECTED || event->event == RDMA_CM_EVENT_UNREACHABLE;

		over = event->event == RDMA_CM_EVENT_ADDR_RESOLVED;
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			give_qp(id);
			if (requests++ % 4 == 3 || rdma_accept(id, NULL)) {
				rdma_reject(id, NULL, 0); // the peer may have given up
				ends = true;
			}
		}
		CHECK(rdma_ack_cm_event(event) == 0);
		if (ends || over)
			end(id);
	}
	CHECK(pthread_join(clients, NULL) == 0);
	CHECK(requests > STRESS_CLIENTS * STRESS_ROUNDS / 4);
	end(listener);
}

// end_waits makes a connection, whose passive end has an extended completion queue. It reports
// whether the end of the connection waits while that end has not read what the queue has taken.
static bool end_waits(struct rdma_cm_id *listener, struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex init = {.cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	struct rdma_event_channel *other = rdma_create_event_channel(), *first = channel;
	struct pollfd event = {.fd = other->fd, .events = POLLIN};
	struct ibv_poll_cq_attr none = {0};
	struct rdma_cm_id *active, *passive;
	const int messages = 3;
	bool waits;

	CHECK(cq && other);
	connect_pair_with(listener, &active, &passive, ibv_cq_ex_to_cq(cq));
	CHECK(rdma_migrate_id(passive, other) == 0);
	CHECK(target = rdma_reg_msgs(passive, got, sizeof got));
	for (int i = 0; i < messages; i++)
		CHECK(rdma_post_recv(passive, NULL, got, sizeof got, target) == 0);
	for (int i = 0; i < messages; i++) {
		struct ibv_wc wc;

		CHECK(rdma_post_send(active, NULL, NULL, 0, NULL, IBV_SEND_SIGNALED) == 0);
		CHECK(rdma_get_send_comp(active, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	}
	CHECK(ibv_start_poll(cq, &none) == 0); // which takes all, for the program to read one
	ibv_end_poll(cq);
	CHECK(rdma_disconnect(active) == 0);
	expect(RDMA_CM_EVENT_DISCONNECTED, active);
	waits = poll(&event, 1, 20) == 0;
	for (int i = 1; i < messages; i++) {
		CHECK(ibv_start_poll(cq, &none) == 0);
		ibv_end_poll(cq);
	}
	CHECK(ibv_start_poll(cq, &none) == ENOENT);
	channel = other;
	expect(RDMA_CM_EVENT_DISCONNECTED, passive);
	channel = first;
	CHECK(rdma_dereg_mr(target) == 0);
	end(active);
	end(passive);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	rdma_destroy_event_channel(other);
	return waits;
}

// A program reads the completions that came before the end of a connection before it learns of the
// end, also those that an extended queue has taken. The end waits for a short time only, so that a
// process that is suspended for longer must try again.
static void end_after_completions(void)
{
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP);
	struct ibv_context **devices = rdma_get_devices(NULL);
	bool waits = false;

	CHECK(devices && devices[0]);
	for (int tries = 0; tries < 20 && !waits; tries++)
		waits = end_waits(listener, devices[0]);
	CHECK(waits);
	rdma_free_devices(devices);
	end(listener);
}

// There are no rsockets, and functions that take other descriptors too take these.
static void rsockets(void)
{
	struct timeval none = {0};
	struct pollfd file;
	int pair[2];
	char byte;
	fd_set set;

	CHECK_FAILS(rsocket(AF_INET, SOCK_STREAM, 0), EPROTONOSUPPORT);
	CHECK(pipe(pair) == 0 && write(pair[1], "x", 1) == 1);
	CHECK_FAILS(rread(pair[0], &byte, 1), EBADF);
	CHECK_FAILS(rfcntl(pair[0], F_GETFL), EBADF);
	CHECK_FAILS(riomap(pair[0], &byte, 1, 0, 0, -1), EBADF);
	file = (struct pollfd){.fd = pair[0], .events = POLLIN};
	CHECK(rpoll(&file, 1, 0) == 1 && file.revents == POLLIN);
	FD_ZERO(&set);
	FD_SET(pair[0], &set);
	CHECK(rselect(pair[0] + 1, &set, NULL, NULL, &none) == 1);
	CHECK(close(pair[0]) == 0 && close(pair[1]) == 0);
}

// A peer gives up before its request is accepted. The program learns it from its accept: the
// identifier still has the context of its listener, for which programs would take an event.
static void unaccepted_requests(void)
{
	struct rdma_conn_param param = {.qp_num = 77};
	struct rdma_cm_id *listener = listen_on("127.0.0.1", RDMA_PS_TCP), *requests[2];
	struct rdma_cm_event *event;

	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *active = resolved(rdma_get_src_port(listener), RDMA_PS_TCP);

		CHECK(rdma_connect(active, &param) == 0);
		event = next(RDMA_CM_EVENT_CONNECT_REQUEST); // nothing of the one before
		requests[i] = event->id;
		CHECK(requests[i]->context == listener->context);
		CHECK(rdma_ack_cm_event(event) == 0);
		end(active);
	}
	CHECK_FAILS(rdma_accept(requests[0], &param), EINVAL);
	end(requests[0]);
	end(requests[1]);
	end(listener);
}

int main(int argc, char **argv)
{
#define CASE(name) {#name, name}
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		CASE(connection), CASE(wildcard), CASE(rejection), CASE(nobody_listens), CASE(own_qp), CASE(datagrams),
		CASE(multicast), CASE(migration), CASE(synchronous), CASE(destruction), CASE(acknowledgement), CASE(end_after_completions), CASE(errors), CASE(forked), CASE(rsockets), CASE(stress), CASE(unaccepted_requests), CASE(unread_requests),
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (argc < 2) {
			puts(cases[i].name);
		} else if (strcmp(argv[1], cases[i].name) == 0) {
			channel = rdma_create_event_channel();
			CHECK(channel);
			cases[i].run();
			rdma_destroy_event_channel(channel);
			puts("passed");
			return 0;
		}
	}
	return argc > 1;
}
