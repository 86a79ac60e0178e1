#!/bin/sh
# PID 1 of a node: makes the machine look like another one, waits for its interface, starts sshd, reaps orphans.
# Words: FOLDER (files of this node) NAME SSHD.   FOLDER/mounts: lines of "bind SOURCE TARGET" and "hide - TARGET", by tab.
set -e
folder=$1 name=$2 sshd=$3
tab=$(printf '\t')

mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p /run/sshd /run/lock /run/stage
hostname "$name"

# Everything that is to be seen is held in /run/stage first, because the next step covers the places where it lies.
number=0
while IFS=$tab read -r verb source target; do
  number=$((number + 1))
  [ "$verb" = bind ] || continue
  mkdir "/run/stage/$number"
  mount --bind "$source" "/run/stage/$number"
done <"$folder/mounts"
exec 9<"$folder/mounts" 8<"$folder/mounts"
mount --bind "$folder/tmp" /tmp
mount -t tmpfs -o mode=1777 tmpfs /var/tmp
mount -t tmpfs -o mode=755 tmpfs /home
mkdir -m 700 /home/train
chown 2000:2000 /home/train

number=0
while IFS=$tab read -r verb source target <&9; do
  number=$((number + 1))
  if [ "$verb" = hide ]; then
    [ ! -d "$target" ] || mount -t tmpfs -o mode=755 tmpfs "$target"
    continue
  fi
  mkdir -p "$target"
  mount --bind "/run/stage/$number" "$target"
  umount "/run/stage/$number"
  rmdir "/run/stage/$number"
done
while IFS=$tab read -r verb source target <&8; do
  [ "$verb" = hide ] && mountpoint -q "$target" && mount -o remount,ro "$target" || true
done
exec 9<&- 8<&-
rmdir /run/stage

# An overlay adds files that the machine itself lacks; where the kernel has none, those that exist are covered one by one.
if ! mount -t overlay overlay -o "lowerdir=$folder/etc:/etc" /etc; then
  for file in "$folder"/etc/*; do
    [ ! -e "/etc/${file##*/}" ] || mount --bind "$file" "/etc/${file##*/}"
  done
fi
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id
if [ -e "$folder/bin/nvidia-smi" ]; then  # login shells set PATH anew
  mount -t overlay overlay -o "lowerdir=$folder/bin:/usr/local/bin" /usr/local/bin || true
fi
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 2>/dev/null || true

read -r _plugged_in
ip -batch "$folder/net.batch"
set +e
cd /
"$sshd" -f "$folder/sshd_config" -E "$folder/sshd.log"
echo up >"$folder/up"
exec </dev/null >/dev/null 2>&1
trap 'exit 0' TERM
while :; do
  sleep 1000000 &
  wait
done
