#!/bin/sh
# Stands in for nvidia-smi.  FOLDER/gpus.csv: index,name,uuid,memory.total,memory.used,utilization.gpu,temperature.gpu,driver_version
# FOLDER/nvidia_smi.exit (a status) and FOLDER/nvidia_smi.sleep (seconds) make it fail or hang.
folder=@FOLDER@
[ ! -e "$folder/nvidia_smi.sleep" ] || sleep "$(cat "$folder/nvidia_smi.sleep")"
if [ -e "$folder/nvidia_smi.exit" ]; then
  echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
  exit "$(cat "$folder/nvidia_smi.exit")"
fi
query= heading=1 units=1 list=
for word in "$@"; do
  case $word in
    -L | --list-gpus) list=1 ;;
    --query-gpu=*) query=${word#--query-gpu=} ;;
    --query-compute-apps=*) exit 0 ;;
    --format=*)
      case $word in *noheader*) heading=0 ;; esac
      case $word in *nounits*) units=0 ;; esac
      ;;
  esac
done
if [ -n "$list" ]; then
  exec awk -F, '{ printf "GPU %s: %s (UUID: %s)\n", $1, $2, $3 }' "$folder/gpus.csv"
fi
if [ -n "$query" ]; then
  exec awk -F, -v query="$query" -v heading="$heading" -v units="$units" '
    BEGIN {
      split("index name uuid memory.total memory.used utilization.gpu temperature.gpu driver_version", names, " ")
      for (i in names) column[names[i]] = i
      column["gpu_name"] = 2; column["gpu_uuid"] = 3
      unit["memory.total"] = "MiB"; unit["memory.used"] = "MiB"; unit["memory.free"] = "MiB"; unit["utilization.gpu"] = "%"
      n = split(query, wanted, / *, */)
      for (i = 1; heading && i <= n; i++)
        printf "%s%s%s%s", (i > 1 ? ", " : ""), wanted[i], ((wanted[i] in unit) && units ? " [" unit[wanted[i]] "]" : ""), (i == n ? "\n" : "")
    }
    { rows[NR] = $0 }
    END {
      for (row = 1; row <= NR; row++) {
        split(rows[row], cell, ",")
        for (i = 1; i <= n; i++) {
          key = wanted[i]
          value = key == "count" ? NR : key == "memory.free" ? cell[4] - cell[5] : (key in column) ? cell[column[key]] : "[N/A]"
          printf "%s%s%s%s", (i > 1 ? ", " : ""), value, ((key in unit) && units ? " " unit[key] : ""), (i == n ? "\n" : "")
        }
      }
    }' "$folder/gpus.csv"
fi
echo "NVIDIA-SMI 570.00   Driver Version: 570.00   CUDA Version: 12.8"
