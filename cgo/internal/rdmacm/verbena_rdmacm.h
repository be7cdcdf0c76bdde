#ifndef VERBENA_RDMACM_H
#define VERBENA_RDMACM_H

#include <stdint.h>
#include <rdma/rdma_cma.h>

// The functions of librdmacm that this package uses: name, version, result and parameters.
#define VC_FUNCTIONS(F) \
	F(create_event_channel, "RDMACM_1.0", struct rdma_event_channel *, (void)) \
	F(destroy_event_channel, "RDMACM_1.0", void, (struct rdma_event_channel *)) \
	F(get_cm_event, "RDMACM_1.0", int, (struct rdma_event_channel *, struct rdma_cm_event **)) \
	F(ack_cm_event, "RDMACM_1.0", int, (struct rdma_cm_event *)) \
	F(create_id, "RDMACM_1.0", int, (struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space)) \
	F(destroy_id, "RDMACM_1.0", int, (struct rdma_cm_id *)) \
	F(migrate_id, "RDMACM_1.0", int, (struct rdma_cm_id *, struct rdma_event_channel *)) \
	F(bind_addr, "RDMACM_1.0", int, (struct rdma_cm_id *, struct sockaddr *)) \
	F(resolve_addr, "RDMACM_1.0", int, (struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int)) \
	F(resolve_route, "RDMACM_1.0", int, (struct rdma_cm_id *, int)) \
	F(set_option, "RDMACM_1.0", int, (struct rdma_cm_id *, int, int, void *, size_t)) \
	F(listen, "RDMACM_1.0", int, (struct rdma_cm_id *, int)) \
	F(connect, "RDMACM_1.0", int, (struct rdma_cm_id *, struct rdma_conn_param *)) \
	F(accept, "RDMACM_1.0", int, (struct rdma_cm_id *, struct rdma_conn_param *)) \
	F(reject, "RDMACM_1.0", int, (struct rdma_cm_id *, const void *, uint8_t)) \
	F(establish, "RDMACM_1.2", int, (struct rdma_cm_id *)) \
	F(notify, "RDMACM_1.0", int, (struct rdma_cm_id *, enum ibv_event_type)) \
	F(disconnect, "RDMACM_1.0", int, (struct rdma_cm_id *)) \
	F(join_multicast_ex, "RDMACM_1.1", int, (struct rdma_cm_id *, struct rdma_cm_join_mc_attr_ex *, void *)) \
	F(leave_multicast, "RDMACM_1.0", int, (struct rdma_cm_id *, struct sockaddr *)) \
	F(init_qp_attr, "RDMACM_1.2", int, (struct rdma_cm_id *, struct ibv_qp_attr *, int *))

// vc_load loads librdmacm. It returns NULL, or an error message. Call it once, before any other
// function.
const char *vc_load(void);

// Functions that return an int return zero or an errno; those that return a pointer set
// errno when it is NULL.

struct rdma_event_channel *vc_create_event_channel(void);
void vc_destroy_event_channel(struct rdma_event_channel *channel);

// vc_param has the parameters that one end sends to the other.
struct vc_param {
	uint32_t qpn, qkey;
	uint8_t responder_resources, initiator_depth;
	uint8_t retry_count, rnr_retry_count;
	uint8_t srq;
	uint8_t private_len;
	uint8_t private_data[255];
};

// vc_event is a copy of an event.
struct vc_event {
	struct rdma_cm_id *id, *listener;
	int32_t kind, status;
	struct vc_param param;
	struct ibv_ah_attr address; // for UD and multicast groups
};

// vc_next_event takes an event, copies it and acknowledges it. EAGAIN: there is none.
int vc_next_event(struct rdma_event_channel *channel, struct vc_event *event);

// vc_addr is the address of an end. The family is AF_INET or AF_INET6, or zero for none.
struct vc_addr {
	uint16_t family, port;
	uint32_t scope;
	uint8_t ip[16]; // IPv4 uses the first four bytes
};

// vc_route is what is known of an ID's route.
struct vc_route {
	struct vc_addr local, remote;
	uint8_t sgid[16];
	uint32_t port;
	char device[IBV_SYSFS_NAME_MAX]; // empty: none yet
};

int vc_create_id(struct rdma_event_channel *channel, int datagrams, struct rdma_cm_id **id);
int vc_destroy_id(struct rdma_cm_id *id);
int vc_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel);
int vc_bind_addr(struct rdma_cm_id *id, struct vc_addr *addr);
int vc_resolve_addr(struct rdma_cm_id *id, struct vc_addr *local, struct vc_addr *remote, int ms);
int vc_resolve_route(struct rdma_cm_id *id, int ms);
void vc_route_of(struct rdma_cm_id *id, struct vc_route *route);
int vc_listen(struct rdma_cm_id *id, int backlog);
int vc_connect(struct rdma_cm_id *id, struct vc_param *param);
int vc_accept(struct rdma_cm_id *id, struct vc_param *param);
int vc_reject(struct rdma_cm_id *id, struct vc_param *param); // private data only
int vc_establish(struct rdma_cm_id *id);
int vc_notify(struct rdma_cm_id *id);
int vc_disconnect(struct rdma_cm_id *id);
int vc_join(struct rdma_cm_id *id, struct vc_addr *group, int send_only);
int vc_leave(struct rdma_cm_id *id, struct vc_addr *group);
int vc_init_qp_attr(struct rdma_cm_id *id, int state, struct ibv_qp_attr *attr, int *mask);

#endif
