import optsched_serving.capacity.plots as _capacity

from .pages import clock_page as clock_page
from .pages import cluster_page as cluster_page
from .pages import comparison_page as comparison_page
from .pages import optimum_page as optimum_page
from .pages import regret_page as regret_page
from .pages import routing_page as routing_page
from .pages import run_page as run_page
from .pages import summary_page as summary_page
from .runs import plot_backlogs as plot_backlogs
from .runs import plot_balance as plot_balance
from .runs import plot_batches as plot_batches
from .runs import plot_clock_comparison as plot_clock_comparison
from .runs import plot_clocked_usage as plot_clocked_usage
from .runs import plot_comparison as plot_comparison
from .runs import plot_decision_times as plot_decision_times
from .runs import plot_equilibrium as plot_equilibrium
from .runs import plot_gap as plot_gap
from .runs import plot_history as plot_history
from .runs import plot_latency as plot_latency
from .runs import plot_loads as plot_loads
from .runs import plot_lookahead as plot_lookahead
from .runs import plot_losses as plot_losses
from .runs import plot_mean_latency as plot_mean_latency
from .runs import plot_memory as plot_memory
from .runs import plot_nested_memory as plot_nested_memory
from .runs import plot_over_bound as plot_over_bound
from .runs import plot_placement as plot_placement
from .runs import plot_power as plot_power
from .runs import plot_regret as plot_regret
from .runs import plot_regret_ratio as plot_regret_ratio
from .runs import plot_schedule as plot_schedule
from .runs import plot_segments as plot_segments
from .runs import plot_slacks as plot_slacks
from .runs import plot_thresholds as plot_thresholds
from .runs import plot_waiting as plot_waiting
from .runs import plot_workers as plot_workers
from .style import plot_bars as plot_bars
from .style import plot_means as plot_means
from .style import plot_series as plot_series
from .style import plot_stack as plot_stack
from .style import save_figure as save_figure
from .style import set_title as set_title
from .style import share_legend as share_legend
from .tables import at_least as at_least
from .tables import clock_table as clock_table
from .tables import cluster_table as cluster_table
from .tables import comparison_table as comparison_table
from .tables import facts_table as facts_table
from .tables import lines_table as lines_table
from .tables import means_table as means_table
from .tables import percent as percent
from .tables import regret_table as regret_table
from .tables import routing_table as routing_table
from .tables import to_html as to_html
from .tables import to_text as to_text

capacity_page = _capacity.capacity_page
capacity_table = _capacity.capacity_table
plot_attainment = _capacity.plot_attainment
plot_growth = _capacity.plot_growth
