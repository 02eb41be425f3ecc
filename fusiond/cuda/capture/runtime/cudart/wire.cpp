#include "wire.h"

#include "state.h"

#include <cerrno>
#include <sys/socket.h>
#include <sys/un.h>

namespace cudart {
namespace {

void send_all(int socket, const void* data, size_t bytes) {
    for (auto at = static_cast<const char*>(data); bytes;) {
        ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) give_up("the service of fusiond capture is gone");
        at += sent, bytes -= sent;
    }
}

void receive_all(int socket, void* data, size_t bytes) {
    for (auto at = static_cast<char*>(data); bytes;) {
        ssize_t got = recv(socket, at, bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) give_up("the service of fusiond capture is gone");
        at += got, bytes -= got;
    }
}

// The head of an answer, with the descriptor that may come beside it; -1: none.
int receive_head(int socket, uint32_t (&head)[2]) {
    iovec into = {head, sizeof head};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &into, message.msg_iovlen = 1;
    message.msg_control = room, message.msg_controllen = sizeof room;
    ssize_t got;
    do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got <= 0) give_up("the service of fusiond capture is gone");
    receive_all(socket, reinterpret_cast<char*>(head) + got, sizeof head - got);
    int found = -1;
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
        if (each->cmsg_level == SOL_SOCKET && each->cmsg_type == SCM_RIGHTS) memcpy(&found, CMSG_DATA(each), sizeof found);
    return found;
}

}  // namespace

Service::Service() {
    const char* path = getenv("FUSIOND_CAPTURE_SOCKET");
    if (!path) give_up("this CUDA runtime needs no GPU and works under `fusiond capture --without-gpu` only");
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0 || connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        give_up("the service of fusiond capture is gone");
}

Reply Service::ask(Ask what, const capture::Fields& fields) {
    uint32_t head[2] = {static_cast<uint32_t>(fields.held().size()), static_cast<uint32_t>(what)};
    send_all(socket_, head, sizeof head);
    send_all(socket_, fields.held().data(), fields.held().size());
    descriptor_ = receive_head(socket_, head);
    std::vector<char> data(head[0]);
    receive_all(socket_, data.data(), data.size());
    Reply reply(std::move(data));
    reply.answer = static_cast<Answer>(head[1]);
    return reply;
}

}  // namespace cudart
