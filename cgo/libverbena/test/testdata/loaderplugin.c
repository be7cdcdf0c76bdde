// Libraries that programs of loader.c load: a plugin, a tracer, and a libibverbs of releases to come.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <infiniband/verbs.h>

#ifdef PLUGIN
void plugin_run(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (!list || count != 1)
		abort();
	ibv_free_device_list(list);
}
#endif

#ifdef TRACER
int traced_calls;

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **(*next)(int *) = (struct ibv_device **(*)(int *))dlsym(RTLD_NEXT, "ibv_get_device_list");

	traced_calls++;
	return next(count);
}
#endif

#ifdef NEWER
// The functions of a provider are behind a pointer, in an order that only this library knows.
struct verbs_ex_private {
	uint64_t own[7];
	void *(*object)(struct ibv_context *context);
	int (*number)(struct ibv_context *context);
};

// struct verbs_context grows at its beginning.
struct newer_context {
	void (*newer[9])(void);
	struct verbs_context old;
};

static void *no_object(struct ibv_context *context)
{
	(void)context;
	errno = EOPNOTSUPP;
	return NULL;
}

static int no_number(struct ibv_context *context)
{
	(void)context;
	return EOPNOTSUPP;
}

void *_verbs_init_and_alloc_context(struct ibv_device *device, int fd, size_t size, struct verbs_context *offset, uint32_t driver)
{
	char *memory = calloc(1, size);
	struct newer_context *c = (struct newer_context *)(memory + (uintptr_t)offset);

	(void)fd, (void)driver;
	((uint32_t *)(device + 1))[100]++; // the number of its users
	c->old.context.device = device;
	c->old.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->old.sz = sizeof *c;
	c->old.priv = calloc(1, sizeof *c->old.priv);
	c->old.priv->object = no_object;
	c->old.priv->number = no_number;
	return memory;
}

static struct verbs_ex_private *provider(struct ibv_context *context)
{
	return ((struct verbs_context *)((char *)context - offsetof(struct verbs_context, context)))->priv;
}

void *ibv_new_object(struct ibv_context *context) { return provider(context)->object(context); }
int ibv_new_number(struct ibv_context *context) { return provider(context)->number(context); }
#endif
