#!/bin/sh
# Stands in for nvidia-smi.  FOLDER/gpus.csv: index,name,uuid,memory.total,memory.used,utilization.gpu,temperature.gpu,driver_version
# FOLDER/nvidia_smi.exit (a status) and FOLDER/nvidia_smi.sleep (seconds) make it fail or hang.
# FOLDER/nvidia_smi.KIND (list, gpus, apps, health, links) is printed as it is, recorded or garbage; it then ends with what
# stands in FOLDER/nvidia_smi.KIND.exit.
folder=@FOLDER@
[ ! -e "$folder/nvidia_smi.sleep" ] || sleep "$(cat "$folder/nvidia_smi.sleep")"
if [ -e "$folder/nvidia_smi.exit" ]; then
  echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
  exit "$(cat "$folder/nvidia_smi.exit")"
fi
query= heading=1 units=1 kind=
for word in "$@"; do
  case $word in
    -L | --list-gpus) kind=list ;;
    -q) kind=health ;;
    nvlink) kind=links ;;
    --query-gpu=*) kind=gpus query=${word#--query-gpu=} ;;
    --query-compute-apps=*) kind=apps ;;
    --format=*)
      case $word in *noheader*) heading=0 ;; esac
      case $word in *nounits*) units=0 ;; esac
      ;;
  esac
done
if [ -n "$kind" ] && [ -e "$folder/nvidia_smi.$kind" ]; then
  cat "$folder/nvidia_smi.$kind"
  [ ! -e "$folder/nvidia_smi.$kind.exit" ] || exit "$(cat "$folder/nvidia_smi.$kind.exit")"
  exit 0
fi
case $kind in
  apps) exit 0 ;;
  list) exec awk -F, '{ printf "GPU %s: %s (UUID: %s)\n", $1, $2, $3 }' "$folder/gpus.csv" ;;
  links) exec awk -F, '{ printf "GPU %s: %s (UUID: %s)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n", $1, $2, $3 }' "$folder/gpus.csv" ;;
  health) exec awk -F, '
    BEGIN { print "<?xml version=\"1.0\" ?>\n<nvidia_smi_log>" }
    {
      printf "<gpu id=\"00000000:%02X:00.0\"><product_name>%s</product_name><uuid>%s</uuid>", 16 + $1, $2, $3
      print "<persistence_mode>Enabled</persistence_mode><compute_mode>Default</compute_mode>"
      print "<mig_mode><current_mig>Disabled</current_mig></mig_mode>"
      print "<pci><pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths></pci_gpu_link_info></pci>"
      print "<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle></clocks_event_reasons>"
      print "<ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>"
      print "<ecc_errors><volatile><dram_uncorrectable>0</dram_uncorrectable></volatile></ecc_errors>"
      print "<remapped_rows><remapped_row_unc>0</remapped_row_unc><remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure></remapped_rows>"
      print "<temperature><gpu_temp>" $7 " C</gpu_temp></temperature>"
      print "<gpu_power_readings><current_power_limit>700.00 W</current_power_limit><default_power_limit>700.00 W</default_power_limit></gpu_power_readings></gpu>"
    }
    END { print "</nvidia_smi_log>" }' "$folder/gpus.csv" ;;
esac
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
