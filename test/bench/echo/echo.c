// The lower bound without the runtime of a language: sets QR in every datagram to
// the given address and sends it back, in batches.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCH = 64, LEN = 512 };

static struct mmsghdr hdrs[BATCH];
static struct iovec iovs[BATCH];
static struct sockaddr_in names[BATCH];
static unsigned char bufs[BATCH][LEN];

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET};
	if (argc != 3 || inet_pton(AF_INET, argv[1], &addr.sin_addr) != 1)
		return 2;
	addr.sin_port = htons((unsigned short)atoi(argv[2]));
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof addr) != 0) {
		perror("echo");
		return 1;
	}
	for (;;) {
		for (int i = 0; i < BATCH; i++) {
			iovs[i] = (struct iovec){bufs[i], LEN};
			hdrs[i].msg_hdr = (struct msghdr){
				.msg_name = &names[i], .msg_namelen = sizeof names[i],
				.msg_iov = &iovs[i], .msg_iovlen = 1};
		}
		int n = recvmmsg(fd, hdrs, BATCH, MSG_WAITFORONE, NULL);
		if (n < 0) {
			if (errno == EINTR || errno == ECONNREFUSED)
				continue;
			perror("echo: recvmmsg");
			return 1;
		}
		for (int i = 0; i < n; i++) {
			bufs[i][2] |= 0x80; // QR, RFC 1035 section 4.1.1
			iovs[i].iov_len = hdrs[i].msg_len;
		}
		for (int sent = 0; sent < n;) {
			int k = sendmmsg(fd, hdrs + sent, n - sent, 0);
			if (k < 0 && errno != EINTR && errno != ECONNREFUSED) {
				perror("echo: sendmmsg");
				return 1;
			}
			sent += k > 0 ? k : 0;
		}
	}
}
