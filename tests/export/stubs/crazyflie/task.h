#pragma once
void vTaskDelay(unsigned ticks);
