// The interface between the two halves of the library. The C half, libverbena.so, has the
// functions, structs and file descriptors of libibverbs and librdmacm. The Go half,
// libverbena-device.so, has the devices behind them, and is loaded when a program first calls
// the verbs.
//
// The C half calls the functions vd_..., which the Go half exports. The Go half calls the
// functions of struct vd_callbacks. Objects of a device have handles, which are the numbers in
// the field "handle" of the structs of libibverbs. Functions return zero or an errno, unless
// they say otherwise.
#ifndef VERBENA_DEVICE_H
#define VERBENA_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// vd_cm_event is an event of a connection identifier.
struct vd_cm_event {
	void *id;
	void *join; // of a multicast event
	enum rdma_cm_event_type type;
	int status;
	// The handle of the new identifier of a connection request. Of what happens to a request that the
	// program has not accepted, that of its identifier.
	uint32_t request;
	// What applies to the type of the queue pair. Private data is below.
	struct rdma_conn_param conn;
	struct rdma_ud_param ud;
	uint8_t private_data_len, private_data[UINT8_MAX];
};

// vd_callbacks are the C half's functions for the Go half. They are called under locks of a
// device, so they do not wait and do not call back. Objects are given as they were passed to
// the function that made them.
struct vd_callbacks {
	// completion: an armed completion queue has got a completion.
	void (*completion)(void *cq);
	// event: an asynchronous event has happened to a context. element is the object or NULL.
	void (*event)(void *context, int type, void *element, int port);
	// cm_event: an event of a connection identifier. For a connection request it returns the
	// object of the new identifier, or NULL to reject the request. For the end of a request whose
	// event was not read, it frees the identifier and its events, and returns what is not NULL:
	// then the Go half closes the identifier too.
	void *(*cm_event)(const struct vd_cm_event *event);
};

// VD_HAS_UDP_PORT, in the field static_rate of an address, says that the field dlid has the UDP
// port of a peer whose device does not have port 4791. RoCE uses neither field. Some programs set
// dlid themselves.
#define VD_HAS_UDP_PORT 0x7f

struct vd_device_info {
	char name[IBV_SYSFS_NAME_MAX];
	uint64_t guid; // host byte order
	int is_efa;
};

// vd_efa_attr are the limits of SRD queue pairs.
struct vd_efa_attr {
	uint32_t max_send_wr, max_recv_wr, max_rdma;
	uint16_t max_send_sge, max_recv_sge, max_inline;
};

// VD_SRD_REMOTE is added to the opcode of an SRD request whose remote memory is in bind_mw.rkey and
// bind_mw.bind_info.addr, since wr.ud names its peer.
#define VD_SRD_REMOTE 0x100

// vd_new_object is what the Go half returns of a new object.
struct vd_new_object {
	uint32_t handle;
	uint32_t number; // QPN, lkey, or that of an XRC shared receive queue
	uint32_t rkey;
	uint32_t capacity; // of a completion queue, or of a queue pair for send requests
};

// vd_extra is what extended completions have besides a struct ibv_wc: ticks of the device's clock,
// nanoseconds since 1970, and, on an EFA, the sender of a message without an address handle.
struct vd_extra {
	uint64_t ticks, wall_clock;
	union ibv_gid sgid; // zero: not known
	bool unsolicited;
};

struct vd_queue_pair_init {
	enum ibv_qp_type type;
	uint32_t send_cq, recv_cq, srq; // handles; srq is 0 without one
	struct ibv_qp_cap cap;
	int signal_all, unsolicited;
};

// vd_cm_route is what is known of the ends of a connection identifier. Addresses whose family is
// AF_UNSPEC are not known.
struct vd_cm_route {
	char device[IBV_SYSFS_NAME_MAX]; // empty: none yet
	struct sockaddr_storage source, destination;
	union ibv_gid sgid, dgid;
	uint8_t port, traffic_class;
	enum ibv_mtu mtu;
};

// The functions of the Go half, with result and parameters.
#define VD_FUNCTIONS(F) \
	/* start is called once, before any other function. */ \
	F(void, start, (struct vd_callbacks *callbacks)) \
	/* enter does nothing. It is the first call of each thread. */ \
	F(void, enter, (void)) \
	/* devices stores at most max devices, and how many there are. */ \
	F(int, devices, (struct vd_device_info *list, int max, int *count)) \
	F(int, open, (const char *name, void *context, uint32_t *handle)) \
	/* close closes a context with all its objects. */ \
	F(int, close, (uint32_t context)) \
	F(int, query_device, (uint32_t context, struct ibv_device_attr_ex *attr)) \
	F(int, query_efa, (uint32_t context, struct vd_efa_attr *attr)) \
	F(int, query_port, (uint32_t context, uint32_t port, struct ibv_port_attr *attr)) \
	/* query_gids stores at most max entries of a port, and how many there are. */ \
	F(int, query_gids, (uint32_t context, uint32_t port, struct ibv_gid_entry *entries, size_t max, size_t *count)) \
	/* files stores the path of the folder that shows the devices as /sys would, and makes it at the first call. */ \
	F(int, files, (char *path, size_t size)) \
	/* refresh updates the counters of the device that has this file. */ \
	F(int, refresh, (const char *path)) \
	F(int, alloc_pd, (uint32_t context, uint32_t *handle)) \
	F(int, reg_mr, (uint32_t pd, void *addr, size_t length, uint64_t iova, uint32_t access, struct vd_new_object *made)) \
	/* rereg_mr changes what flags of IBV_REREG_MR_... name. The keys stay. */ \
	F(int, rereg_mr, (uint32_t mr, int flags, uint32_t pd, void *addr, size_t length, uint32_t access)) \
	F(int, reg_dmabuf_mr, (uint32_t pd, uint64_t offset, size_t length, uint64_t iova, int fd, uint32_t access, struct vd_new_object *made)) \
	F(int, advise_mr, (uint32_t pd, int advice, uint32_t flags, struct ibv_sge *list, uint32_t count)) \
	F(int, alloc_mw, (uint32_t pd, int type, struct vd_new_object *made)) \
	F(int, create_cq, (uint32_t context, void *cq, int cqe, uint64_t wc_flags, struct vd_new_object *made)) \
	F(int, resize_cq, (uint32_t cq, int cqe, uint32_t *capacity)) \
	F(int, arm_cq, (uint32_t cq, int solicited_only)) \
	/* poll_for_event polls for a while, until the number of events differs from seen. */ \
	F(void, poll_for_event, (uint32_t context, uint32_t *events, uint32_t seen)) \
	/* event_awaited says that the thread has slept, and was woken for an event. */ \
	F(void, event_awaited, (uint32_t context)) \
	/* poll_cq returns the number of completions, or minus an errno. extras may be NULL. */ \
	F(int, poll_cq, (uint32_t cq, int n, struct ibv_wc *wcs, struct vd_extra *extras)) \
	/* open_xrcd has the arguments of ibv_open_xrcd. */ \
	F(int, open_xrcd, (uint32_t context, int fd, int oflags, uint32_t *handle)) \
	/* open_xrc_qp makes an XRC receive queue pair, or opens the one with that number if it is not zero. */ \
	F(int, open_xrc_qp, (uint32_t xrcd, void *qp, uint32_t number, struct vd_new_object *made)) \
	/* xrcd is zero, or the queue is an XRC one with that completion queue. */ \
	F(int, create_srq, (uint32_t pd, uint32_t xrcd, uint32_t cq, void *srq, struct ibv_srq_attr *attr, struct vd_new_object *made)) \
	F(int, arm_srq, (uint32_t srq, uint32_t limit)) \
	/* srq_limit stores the limit, zero after its event. */ \
	F(int, srq_limit, (uint32_t srq, uint32_t *limit)) \
	F(int, create_qp, (uint32_t pd, void *qp, struct vd_queue_pair_init *init, struct vd_new_object *made)) \
	F(int, modify_qp, (uint32_t qp, struct ibv_qp_attr *attr, int mask)) \
	F(int, query_qp, (uint32_t qp, struct ibv_qp_attr *attr)) \
	F(int, post_send, (uint32_t qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)) \
	F(int, post_recv, (uint32_t qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)) \
	F(int, post_srq_recv, (uint32_t srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)) \
	F(int, create_ah, (uint32_t pd, struct ibv_ah_attr *attr, uint32_t *handle)) \
	/* ah_number stores the number by which completions on an EFA name the address handle's peer. */ \
	F(int, ah_number, (uint32_t ah, uint16_t *number)) \
	F(int, attach_mcast, (uint32_t qp, const union ibv_gid *group, int attach)) \
	/* The Go half reads the key of a memory window after a bind. */ \
	F(int, mw_key, (uint32_t mw, uint32_t *rkey)) \
	/* destroy closes an object of any kind but a context. */ \
	F(int, destroy, (enum vd_kind kind, uint32_t handle)) \
	/* The functions below are those of librdmacm, for an identifier. */ \
	F(int, cm_create, (void *id, int port_space, int qp_type, uint32_t *handle)) \
	/* No event of the identifier comes once cm_destroy has returned. */ \
	F(int, cm_destroy, (uint32_t id)) \
	F(int, cm_bind, (uint32_t id, struct sockaddr *address)) \
	/* source may be NULL. */ \
	F(int, cm_resolve_addr, (uint32_t id, struct sockaddr *source, struct sockaddr *destination)) \
	F(int, cm_resolve_route, (uint32_t id)) \
	F(int, cm_query, (uint32_t id, struct vd_cm_route *route)) \
	F(int, cm_listen, (uint32_t id, int backlog)) \
	F(int, cm_connect, (uint32_t id, struct rdma_conn_param *param)) \
	F(int, cm_accept, (uint32_t id, struct rdma_conn_param *param)) \
	F(int, cm_establish, (uint32_t id)) \
	F(int, cm_reject, (uint32_t id, const void *private_data, uint8_t size)) \
	/* cm_disconnect returns EALREADY if the connection has ended. */ \
	F(int, cm_disconnect, (uint32_t id)) \
	F(int, cm_notify, (uint32_t id, int event)) \
	F(int, cm_set_option, (uint32_t id, int level, int name, const void *value, size_t size)) \
	F(int, cm_qp_attr, (uint32_t id, enum ibv_qp_state state, struct ibv_qp_attr *attr, int *mask)) \
	/* cm_modify_qp moves a queue pair to INIT, RTR or RTS. The depths are limits. */ \
	F(int, cm_modify_qp, (uint32_t id, uint32_t qp, enum ibv_qp_state state, uint8_t responder_resources, uint8_t initiator_depth)) \
	F(int, cm_join, (uint32_t id, struct sockaddr *group, int send_only, void *join, uint32_t *handle)) \
	/* No event of the membership comes once cm_leave has returned. */ \
	F(int, cm_leave, (uint32_t join)) \
	/* cm_exit closes all connections, at the end of the process. */ \
	F(void, cm_exit, (void))

// vd_kind is the kind of an object to be destroyed.
enum vd_kind { VD_PD, VD_MR, VD_MW, VD_CQ, VD_SRQ, VD_QP, VD_AH, VD_XRCD };

#endif
