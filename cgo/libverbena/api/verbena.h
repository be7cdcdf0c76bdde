// The structs and functions that the files of the C half share.
#ifndef VERBENA_H
#define VERBENA_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

#include "../../internal/efa/verbena_efa.h"
#include "device.h"

// VB_EXPORT marks the functions of libibverbs and librdmacm. All others are hidden.
#define VB_EXPORT __attribute__((visibility("default")))

// RoCE has one P_Key, the default one (annex A17.7).
#define VB_DEFAULT_PKEY 0xffff

#define vb_container(pointer, type, member) \
	((type *)((char *)(pointer) - offsetof(type, member)))

// vb_device_functions are the functions of the Go half.
struct vb_device_functions {
#define F(result, name, parameters) result (*name) parameters;
	VD_FUNCTIONS(F)
#undef F
};

// vb is valid while vb_ready returns zero.
extern struct vb_device_functions vb;

// A thread that reads VB_READY also sees what was written before it, such as vb.
enum vb_state { VB_UNLOADED, VB_READY, VB_FAILED, VB_FORKED };
extern _Atomic enum vb_state vb_state;

// vb_load loads the Go half at the first call, and returns zero or an errno.
int vb_load(void);

// vb_refused is called if the Go half cannot be used. It returns an errno, and reports the
// reason once on standard error.
int vb_refused(void);

// vb_thread_enters makes a thread known to the Go runtime, and keeps the mask of its signals. It is
// called before a thread's first call of the Go half.
void vb_thread_enters(void);
extern __attribute__((tls_model("initial-exec"))) __thread bool vb_thread_known;

// vb_signals_load and vb_signals_loaded are called before and after the Go half is loaded, with all
// signals blocked, and vb_signals_forked in a forked child. If the Go half is not ready, the program's
// actions are put back.
void vb_signals_load(void);
void vb_signals_loaded(bool ready);
void vb_signals_forked(void);
// vb_unblock_faults removes signals that threads need in the Go half from a mask.
void vb_unblock_faults(sigset_t *mask);

// vb_ready returns zero if the Go half can be called, or an errno. Functions that have an object
// of ours call it: the Go half was loaded when the object was made.
static inline int vb_ready(void)
{
	if (__builtin_expect(vb_state != VB_READY, 0))
		return vb_refused();
	if (__builtin_expect(!vb_thread_known, 0))
		vb_thread_enters();
	return 0;
}

// vb_fail sets errno and returns NULL.
void *vb_fail(int error);

// vb_system_library returns the system's library of a name, or NULL if it is not in the process.
void *vb_system_library(const char *name);

// vb_empty_provider returns what libibverbs keeps of a context whose provider supports nothing. It is NULL
// if the system's libibverbs is not in the process.
struct verbs_ex_private *vb_empty_provider(void);

// vb_event is an event that waits to be read.
struct vb_event {
	struct vb_event *next;
	void *object; // that it happened to
};

// vb_events is a queue of events with a file descriptor that can be polled. The count of the
// eventfd is the number of events. Both change together, under the lock.
struct vb_events {
	int fd;
	uint32_t added; // events ever: readers wait for it to change
	_Atomic unsigned int waiting; // threads that sleep until then
	pthread_mutex_t lock;
	struct vb_event *first, **last;
	uint32_t context; // of a completion channel, for which threads poll; 0: none
};

int vb_events_init(struct vb_events *events);
// vb_events_close_fd closes the file descriptor. Threads that take events can still wait.
void vb_events_close_fd(struct vb_events *events);
// vb_events_close frees the events that are left.
void vb_events_close(struct vb_events *events);
void vb_events_add(struct vb_events *events, struct vb_event *event);
// vb_events_take returns the oldest event. It waits for one, unless the descriptor is
// non-blocking. It returns NULL with errno set, as read(2) would. The counter that event_counter
// returns, if any, is incremented together with the removal of the event.
struct vb_event *vb_events_take(struct vb_events *events, unsigned int *(*event_counter)(struct vb_event *));
// vb_events_withdraw removes the event for which is returns true, and returns it, or NULL. It does not
// remove the only event: a program that has seen that the descriptor is readable must find one.
struct vb_event *vb_events_withdraw(struct vb_events *events, bool (*is)(struct vb_event *event, const void *key), const void *key);
// vb_events_detach removes the events of an object, and returns their list.
struct vb_event *vb_events_detach(struct vb_events *events, void *object);
// vb_events_drop removes and frees the events of an object.
void vb_events_drop(struct vb_events *events, void *object);
// vb_events_await waits until all events of an object that were read are acknowledged. The mutex
// and the condition belong to the number of those that were.
void vb_events_await(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *acknowledged, const unsigned int *read);

struct vb_device {
	struct ibv_device base;
	uint64_t guid; // host byte order
	struct vb_device *next;
	// For the library's own use: see vb_share.
	struct ibv_context *context;
	struct ibv_pd *pd;
	uint8_t max_responder_resources, max_initiator_depth; // as in struct rdma_conn_param
};

// vb_find_device returns a device that has been listed, by its name or by its name in /dev.
struct vb_device *vb_find_device(const char *name, const char *dev_name);

// vb_share opens the device for the functions of librdmacm and for the files in /sys, once, for as
// long as the process lives. It returns an errno.
int vb_share(struct vb_device *device);

struct vb_context {
	uint32_t handle;
	struct vb_events async;
	struct ibv_device_attr_ex attr; // forked children may query it
	_Atomic size_t device_memory; // bytes that are allocated
	struct verbs_context verbs; // must be last
};

static inline struct vb_context *vb_context(struct ibv_context *context)
{
	return vb_container(context, struct vb_context, verbs.context);
}

// vb_gid_table stores the GID table of a port, which the caller frees. It returns an errno.
int vb_gid_table(struct ibv_context *context, uint32_t port, struct ibv_gid_entry **entries, size_t *count);

struct vb_channel {
	struct ibv_comp_channel base;
	struct vb_events events;
};

struct vb_pd {
	struct ibv_pd base;
	struct vb_pd *parent; // of a parent domain: the domain that it stands for
	_Atomic int refs;     // parent domains
};

struct vb_mr {
	struct ibv_mr base;
	_Atomic int *users; // of its device memory; NULL: it has other memory
};

// VB_DEVICE_MEMORY is how much device memory a context has, in bytes.
#define VB_DEVICE_MEMORY (1 << 20)

#define VB_POLL_BATCH 16

struct vb_cq {
	union {
		struct ibv_cq base;
		struct ibv_cq_ex extended;
	};
	struct vb_efa_cq efa;
	// Events that have been read. The locks of the queues of events guard them.
	unsigned int completions, asyncs;

	// Completions that start_poll took and the program has not read. The lock guards them, and
	// is held between start_poll and end_poll.
	pthread_mutex_t lock;
	bool is_extended, reading;
	int first, count;
	struct ibv_wc wcs[VB_POLL_BATCH];
	struct vd_extra extras[VB_POLL_BATCH];
};

struct vb_srq {
	struct ibv_srq base;
	unsigned int asyncs;
	uint32_t number; // of XRC
	struct ibv_srq_attr attr;
};

// vb_builder collects requests between wr_start and wr_complete.
struct vb_builder {
	pthread_mutex_t lock; // held from wr_start to wr_complete or wr_abort
	int error;
	size_t count;
	// As many as the queue has room for, each with its entries and inline data.
	struct ibv_send_wr *wrs;
	struct ibv_sge *sges;
	char *bytes;
};

struct vb_qp {
	union {
		struct ibv_qp base;
		struct ibv_qp_ex extended;
	};
	unsigned int asyncs;
	int signal_all;
	struct ibv_qp_cap cap;
	bool is_extended;
	struct vb_builder builder;
};

// Functions of the operations tables.
int vb_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wcs);
int vb_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int vb_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vb_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int vb_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int vb_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list, uint32_t count);
struct ibv_dm *vb_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr);
int vb_free_dm(struct ibv_dm *dm);
struct ibv_mr *vb_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access);
struct ibv_mw *vb_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int vb_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
int vb_dealloc_mw(struct ibv_mw *mw);
struct ibv_cq_ex *vb_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
// vb_discard_completions removes the completions of a queue pair that an extended queue keeps.
void vb_discard_completions(struct ibv_cq *cq, uint32_t qp_num);
// vb_create_qp makes a queue pair of any type. unsolicited is an option of SRD.
struct vb_qp *vb_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, bool unsolicited);
struct ibv_qp *vb_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
struct ibv_srq *vb_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
struct ibv_xrcd *vb_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr);
int vb_close_xrcd(struct ibv_xrcd *xrcd);
struct ibv_qp *vb_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr);
int vb_get_srq_num(struct ibv_srq *srq, uint32_t *number);
struct ibv_td *vb_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr);
int vb_dealloc_td(struct ibv_td *td);
struct ibv_pd *vb_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr);

uint32_t vb_xrcd_handle(struct ibv_xrcd *xrcd);

// vb_create_xrc_recv makes an XRC receive queue pair.
struct ibv_qp *vb_create_xrc_recv(struct ibv_qp_init_attr_ex *attr);

// vb_extend sets the functions by which programs build requests. It returns an errno.
int vb_extend(struct vb_qp *qp);
void vb_builder_free(struct vb_builder *builder);

// The callbacks of the Go half.
void vb_completion(void *cq);
void vb_async(void *context, int type, void *element, int port);
void *vb_cm_event(const struct vd_cm_event *event);

#endif
