// Programs that load libibverbs or librdmacm themselves, as NCCL and Python's ctypes do. A preloaded
// library does not change what dlopen returns, and the functions of the system's library know no
// software device. So dlopen returns this library for those two and libefa, whatever their folder is.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "verbena.h"

// is_library reports whether a path is that of a library, with or without a version: libNAME.so or
// libNAME.so.1.
static bool is_library(const char *path, const char *library)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	size_t length = strlen(library);

	return strncmp(name, library, length) == 0 && (name[length] == 0 || name[length] == '.');
}

// replaced returns this library's path for those of the libraries that it replaces.
static __attribute__((noinline)) const char *replaced(const char *path)
{
	Dl_info own;

	if (path && (is_library(path, "libibverbs.so") || is_library(path, "librdmacm.so") || is_library(path, "libefa.so")) && dladdr(&vb_state, &own))
		return own.dli_fname;
	return path;
}

typedef void *opener(const char *path, int flags);

static opener *c_library(void)
{
	static _Atomic(opener *) next;
	opener *function = next;

	if (!function)
		next = function = (opener *)dlsym(RTLD_NEXT, "dlopen");
	return function;
}

// The call of the C library's function has to be a jump, for which no variable here may be in memory:
// that function searches the RUNPATH of the code that it returns to. Compilers need to be told if they
// do not optimize.
#ifdef __clang__
#define OPTIMIZED
#define JUMP __attribute__((musttail))
#else
#define OPTIMIZED __attribute__((optimize("O2")))
#define JUMP
#endif

VB_EXPORT OPTIMIZED __attribute__((no_sanitize_address)) void *dlopen(const char *path, int flags)
{
	JUMP return c_library()(replaced(path), flags);
}

void *vb_system_library(const char *name)
{
	void *handle = c_library()(name, RTLD_LAZY | RTLD_NOLOAD);

	return handle && !dlsym(handle, "verbena_version") ? handle : NULL;
}
