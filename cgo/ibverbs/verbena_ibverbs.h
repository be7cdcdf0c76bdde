#ifndef VERBENA_LIBRARY_H
#define VERBENA_LIBRARY_H

#include <stdint.h>
#include <infiniband/verbs.h>

// The functions of libibverbs that are not inline in its header: name, symbol, version, result
// and parameters.
#define VB_FUNCTIONS(F) \
	F(get_device_list, "ibv_get_device_list", "IBVERBS_1.1", struct ibv_device **, (int *)) \
	F(free_device_list, "ibv_free_device_list", "IBVERBS_1.1", void, (struct ibv_device **)) \
	F(get_device_guid, "ibv_get_device_guid", "IBVERBS_1.1", uint64_t, (struct ibv_device *)) \
	F(open_device, "ibv_open_device", "IBVERBS_1.1", struct ibv_context *, (struct ibv_device *)) \
	F(close_device, "ibv_close_device", "IBVERBS_1.1", int, (struct ibv_context *)) \
	F(query_device, "ibv_query_device", "IBVERBS_1.1", int, (struct ibv_context *, struct ibv_device_attr *)) \
	F(query_port, "ibv_query_port", "IBVERBS_1.1", int, (struct ibv_context *, uint8_t, void *)) \
	F(query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11", ssize_t, (struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t)) \
	F(get_async_event, "ibv_get_async_event", "IBVERBS_1.1", int, (struct ibv_context *, struct ibv_async_event *)) \
	F(ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1", void, (struct ibv_async_event *)) \
	F(alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1", struct ibv_pd *, (struct ibv_context *)) \
	F(dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1", int, (struct ibv_pd *)) \
	F(reg_mr, "ibv_reg_mr_iova2", "IBVERBS_1.8", struct ibv_mr *, (struct ibv_pd *, void *, size_t, uint64_t, unsigned int)) \
	F(dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1", int, (struct ibv_mr *)) \
	F(create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0", struct ibv_comp_channel *, (struct ibv_context *)) \
	F(destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0", int, (struct ibv_comp_channel *)) \
	F(create_cq, "ibv_create_cq", "IBVERBS_1.1", struct ibv_cq *, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int)) \
	F(destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1", int, (struct ibv_cq *)) \
	F(get_cq_event, "ibv_get_cq_event", "IBVERBS_1.1", int, (struct ibv_comp_channel *, struct ibv_cq **, void **)) \
	F(ack_cq_events, "ibv_ack_cq_events", "IBVERBS_1.1", void, (struct ibv_cq *, unsigned int)) \
	F(create_srq, "ibv_create_srq", "IBVERBS_1.1", struct ibv_srq *, (struct ibv_pd *, struct ibv_srq_init_attr *)) \
	F(modify_srq, "ibv_modify_srq", "IBVERBS_1.1", int, (struct ibv_srq *, struct ibv_srq_attr *, int)) \
	F(destroy_srq, "ibv_destroy_srq", "IBVERBS_1.1", int, (struct ibv_srq *)) \
	F(create_qp, "ibv_create_qp", "IBVERBS_1.1", struct ibv_qp *, (struct ibv_pd *, struct ibv_qp_init_attr *)) \
	F(modify_qp, "ibv_modify_qp", "IBVERBS_1.1", int, (struct ibv_qp *, struct ibv_qp_attr *, int)) \
	F(query_qp, "ibv_query_qp", "IBVERBS_1.1", int, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *)) \
	F(destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1", int, (struct ibv_qp *)) \
	F(qp_to_qp_ex, "ibv_qp_to_qp_ex", "IBVERBS_1.6", struct ibv_qp_ex *, (struct ibv_qp *)) \
	F(create_ah, "ibv_create_ah", "IBVERBS_1.1", struct ibv_ah *, (struct ibv_pd *, struct ibv_ah_attr *)) \
	F(destroy_ah, "ibv_destroy_ah", "IBVERBS_1.1", int, (struct ibv_ah *)) \
	F(attach_mcast, "ibv_attach_mcast", "IBVERBS_1.1", int, (struct ibv_qp *, const union ibv_gid *, uint16_t)) \
	F(detach_mcast, "ibv_detach_mcast", "IBVERBS_1.1", int, (struct ibv_qp *, const union ibv_gid *, uint16_t))

// The functions that older libraries do not have.
#define VB_OPTIONAL(F) \
	F(reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", struct ibv_mr *, (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int))

// vb_load loads libibverbs. It returns NULL, or an error message. Call it once, before any
// other function.
const char *vb_load(void);

// The verbs as they are called from Go. Those that return an int return zero or
// an errno; those that return a pointer set errno when it is NULL.

struct ibv_device **vb_get_device_list(int *count);
void vb_free_device_list(struct ibv_device **list);
uint64_t vb_get_device_guid(struct ibv_device *device);
struct ibv_context *vb_open_device(struct ibv_device *device);
int vb_close_device(struct ibv_context *ctx);
int vb_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr);
int vb_query_port(struct ibv_context *ctx, int port, struct ibv_port_attr *attr);
ssize_t vb_query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max);

struct ibv_pd *vb_alloc_pd(struct ibv_context *ctx);
int vb_dealloc_pd(struct ibv_pd *pd);
// The address is passed as a number: for a pointer, cgo would check the whole object that
// contains it.
struct ibv_mr *vb_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t length, unsigned int access);
// If the library lacks the function, errno is EOPNOTSUPP, as it is if the provider lacks it.
struct ibv_mr *vb_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, unsigned int access);
int vb_dereg_mr(struct ibv_mr *mr);
struct ibv_ah *vb_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int vb_destroy_ah(struct ibv_ah *ah);
struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd, int type);
int vb_dealloc_mw(struct ibv_mw *mw);
// For type 1 windows only. It stores the new key in the window.
int vb_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, uint64_t id, unsigned int flags, struct ibv_mr *mr, uint64_t addr, uint64_t length, unsigned int access);
int vb_attach_mcast(struct ibv_qp *qp, union ibv_gid *group, uint16_t lid);
int vb_detach_mcast(struct ibv_qp *qp, union ibv_gid *group, uint16_t lid);

struct ibv_comp_channel *vb_create_comp_channel(struct ibv_context *ctx);
int vb_destroy_comp_channel(struct ibv_comp_channel *channel);
struct ibv_cq *vb_create_cq(struct ibv_context *ctx, int entries, struct ibv_comp_channel *channel, int vector);
int vb_destroy_cq(struct ibv_cq *cq);
// This and the three posts take addresses as numbers. They are called often, and cgo checks of
// every pointer argument whether it points to Go memory.
int vb_poll_cq(uintptr_t cq, int max, uintptr_t wc);
int vb_req_notify_cq(struct ibv_cq *cq, int solicited);

struct ibv_srq *vb_create_srq(struct ibv_pd *pd, uint32_t receives, uint32_t entries);
int vb_limit_srq(struct ibv_srq *srq, uint32_t limit);
int vb_destroy_srq(struct ibv_srq *srq);

struct ibv_qp *vb_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
int vb_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int vb_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, struct ibv_qp_init_attr *init);
int vb_destroy_qp(struct ibv_qp *qp);
// It returns NULL if the queue pair was not made for extended posting.
struct ibv_qp_ex *vb_qp_to_qp_ex(struct ibv_qp *qp);

// The posts return zero, or the errno in the lower 32 bits and the index of the
// refused request in the upper 32.
int64_t vb_post_send(uintptr_t qp, uintptr_t wr);
int64_t vb_post_recv(uintptr_t qp, uintptr_t wr);
int64_t vb_post_srq_recv(uintptr_t srq, uintptr_t wr);

// vb_cq_events takes and acknowledges the pending events of a queue's channel, whose file is
// non-blocking. It returns the number of events.
int vb_cq_events(struct ibv_cq *cq);

// vb_event is an asynchronous event and its object.
struct vb_event {
	int32_t type;
	int32_t port;
	uint32_t qpn;
	uint32_t reserved;
	uint64_t object; // the address of a completion queue or shared receive queue
};

int vb_get_async_event(struct ibv_context *ctx, struct ibv_async_event *raw, struct vb_event *event);
void vb_ack_async_event(struct ibv_async_event *raw);

#endif
