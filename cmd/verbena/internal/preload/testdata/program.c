/* A program of a user: it shows what it was started with, and ends as it is told. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__attribute__((weak)) extern int libverbena(void);
__attribute__((weak)) extern int other(void);

static void show(const char *name)
{
	const char *value = getenv(name);
	printf("%s=[%s]\n", name, value ? value : "unset");
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "exit"))
		return atoi(argv[2]);
	if (argc > 1 && !strcmp(argv[1], "abort"))
		abort();
	if (argc > 1 && !strcmp(argv[1], "wait")) {
		printf("pid %d\n", getpid());
		fflush(stdout);
		pause();
		return 0;
	}
	struct sigaction interrupt, terminate;
	sigaction(SIGINT, NULL, &interrupt);
	sigaction(SIGTERM, NULL, &terminate);
	printf("SIGINT %s SIGTERM %s\n", interrupt.sa_handler == SIG_IGN ? "ignored" : "default",
	       terminate.sa_handler == SIG_DFL ? "default" : "other");
	printf("libverbena %d other %d\n", libverbena ? libverbena() : 0, other ? other() : 0);
	for (int i = 0; i < argc; i++)
		printf("argument [%s]\n", argv[i]);
	show("LD_PRELOAD");
	show("LD_LIBRARY_PATH");
	show("VERBENA_DEVICES");
	return 0;
}
