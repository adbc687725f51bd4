/* Runs a command as on an older kernel or in a sandbox: a seccomp filter lets the calls that are named fail,
 * with the errno that a kernel without them has, or with the answer that is named. The filter is inherited
 * by everything that the command starts.
 *
 *   old_kernel handles,groups,pidfd_open=eperm,setpriority=kill COMMAND [ARGUMENT...]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "old_kernel knows the system calls of x86_64 and aarch64"
#endif

/* The same numbers on both; headers of older systems do not have them all. */
enum { PIDFD_SEND_SIGNAL = 424, PIDFD_OPEN = 434, CLONE3 = 435, CLOSE_RANGE = 436 };

/* Which calls fail: all, those whose argument is not 0, or those whose argument is a given value. */
enum which { ALL, NONZERO, EQUAL };

struct feature {
    const char *name;
    unsigned int call;
    int error;
    enum which which;
    int argument;
    unsigned int value;
};

static const struct feature features[] = {
    {"handles", SYS_name_to_handle_at, EOPNOTSUPP, ALL, 0, 0}, /* pidfds have file handles since Linux 6.14 */
    {"groups", PIDFD_SEND_SIGNAL, EINVAL, NONZERO, 3, 0},      /* PIDFD_SIGNAL_PROCESS_GROUP: 6.9 */
    {"close_range", CLOSE_RANGE, ENOSYS, ALL, 0, 0},           /* 5.9 */
    {"clone3", CLONE3, ENOSYS, ALL, 0, 0},                     /* 5.3 */
    {"pidfd_open", PIDFD_OPEN, ENOSYS, ALL, 0, 0},             /* 5.3 */
    {"pidfd_send_signal", PIDFD_SEND_SIGNAL, EPERM, ALL, 0, 0},
    {"kill", SYS_kill, EPERM, ALL, 0, 0},
    {"setpriority", SYS_setpriority, EPERM, ALL, 0, 0},
    {"subreaper", SYS_prctl, EPERM, EQUAL, 0, PR_SET_CHILD_SUBREAPER},
    {"death_signal", SYS_prctl, EPERM, EQUAL, 0, PR_SET_PDEATHSIG},
};
enum { FEATURES = sizeof features / sizeof features[0] };

/* What may stand behind a name. */
static const struct {
    const char *name;
    unsigned int answer;
} answers[] = {
    {"enosys", SECCOMP_RET_ERRNO | ENOSYS},
    {"eperm", SECCOMP_RET_ERRNO | EPERM},
    {"kill", SECCOMP_RET_KILL_PROCESS},
};
enum { ANSWERS = sizeof answers / sizeof answers[0] };

static struct sock_filter filter[4 + 5 * FEATURES];
static unsigned short length;

static void add(unsigned short code, unsigned int value, unsigned char if_true, unsigned char if_false)
{
    filter[length++] = (struct sock_filter){code, if_true, if_false, value};
}

static void load(size_t offset)
{
    add(BPF_LD | BPF_W | BPF_ABS, (unsigned int)offset, 0, 0);
}

static void answer(unsigned int value)
{
    add(BPF_RET | BPF_K, value, 0, 0);
}

static void take_away(const struct feature *feature, unsigned int refusal)
{
    const unsigned short equal = BPF_JMP | BPF_JEQ | BPF_K;
    load(offsetof(struct seccomp_data, nr));
    if (feature->which == ALL) {
        add(equal, feature->call, 0, 1);
        answer(refusal);
        return;
    }
    add(equal, feature->call, 0, 3);
    /* Both kinds of arguments are 32 bits wide, and both machines store the lower half first. */
    load(offsetof(struct seccomp_data, args) + 8 * (size_t)feature->argument);
    if (feature->which == NONZERO)
        add(equal, 0, 1, 0);
    else
        add(equal, feature->value, 0, 1);
    answer(refusal);
}

/* The answer that a name asks for, behind an '='; its own errno if there is none; 0 if there is no such answer. */
static unsigned int read_answer(const struct feature *feature, const char *text)
{
    if (text == NULL)
        return SECCOMP_RET_ERRNO | (unsigned int)feature->error;
    for (int i = 0; i < ANSWERS; i++)
        if (strcmp(answers[i].name, text) == 0)
            return answers[i].answer;
    return 0;
}

/* Notes the answer for each that the list names. Whether there is such a thing for each name. SECCOMP_RET_KILL_PROCESS
 * is not 0, so 0 is "not named". */
static int read_list(char *list, unsigned int wanted[FEATURES])
{
    for (char *name = strtok(list, ","); name != NULL; name = strtok(NULL, ",")) {
        char *text = strchr(name, '=');
        if (text != NULL)
            *text++ = 0;
        unsigned int found = 0;
        for (int i = 0; i < FEATURES; i++)
            if (strcmp(features[i].name, name) == 0)
                found = wanted[i] = read_answer(&features[i], text);
        if (found == 0) {
            fprintf(stderr, "old-kernel: nothing is called '%s'; see --help\n", name);
            return 0;
        }
    }
    return 1;
}

static int install(void)
{
    struct sock_fprog program = {length, filter};
    unsigned int flags = 0;
#ifdef SECCOMP_FILTER_FLAG_SPEC_ALLOW
    /* Otherwise kernels before 5.16 slow the command down, which has nothing to do with what is asked for. */
    flags = SECCOMP_FILTER_FLAG_SPEC_ALLOW;
#endif
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fputs("usage: old_kernel LIST COMMAND [ARGUMENT...]\n", stderr);
        return 2;
    }
    /* A call of another architecture has other numbers. */
    load(offsetof(struct seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    answer(SECCOMP_RET_ALLOW);
    unsigned int wanted[FEATURES] = {0};
    if (!read_list(argv[1], wanted))
        return 2;
    for (int i = 0; i < FEATURES; i++)
        if (wanted[i])
            take_away(&features[i], wanted[i]);
    answer(SECCOMP_RET_ALLOW);
    /* Order: only who may not do without gives up set-user-id programs for it. */
    if (install() != 0 && (errno != EACCES || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || install() != 0)) {
        perror("old-kernel: seccomp");
        return 126;
    }
    execvp(argv[2], argv + 2);
    int missing = errno == ENOENT;
    fprintf(stderr, "old-kernel: %s: %s\n", argv[2], strerror(errno));
    return missing ? 127 : 126;
}
